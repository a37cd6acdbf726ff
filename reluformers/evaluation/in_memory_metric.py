"""The ground of metrics of `evaluate` that need no network and write no files."""

import evaluate


class InMemoryMetric(evaluate.Metric):
    """Keeps predictions and references in memory, so processes cannot collide."""

    def __init__(self, config_name: str | None = None, **kwargs):
        super().__init__(config_name, **{"keep_in_memory": True, **kwargs})

    def _build_data_dir(self) -> str:
        # in memory no folder is needed, and the home folder may be read-only
        return "" if self.keep_in_memory else super()._build_data_dir()
