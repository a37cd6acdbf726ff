"""How a saved model is scored, whatever its task: load, answer, count, measure the attention."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor
from transformers import PreTrainedModel

from reluformers.data.names import named_split
from reluformers.files import check_output_files
from reluformers.saved_models import model_files, read_results, to_accelerator

from .attention_report import attention_report
from .circumstances import current_circumstances
from .results import Evaluation


@dataclass(kw_only=True)
class ScoringOptions:
    """Which model is scored on which rows; a task adds fields of its own.

    Args:
        model: folder of a saved model, or Hub id.
        data: Hub id, folder or file of the rows; {split: file or files} names the files of a split, and
            {"source": file, "target": file} two text files, line by line.
        data_config: configuration name of a Hub data set, such as de-en.
        data_revision: branch, tag or commit of a Hub data set.
        split: split to score, perhaps with a slice, such as test[:100]; without it, the split in the name of the
            file, such as validation.jsonl, or else test.
        attention_report: also measure the attention weights.
        output: JSON file for the results.
        trust_remote_code: run the model code of the repository.
    """

    model: str | Path
    data: str | dict[str, Any]
    data_config: str | None = None
    data_revision: str | None = None
    split: str | None = None
    attention_report: bool = False
    output: str | Path | None = None
    trust_remote_code: bool = False

    written: ClassVar[tuple[str, ...]] = ("output",)  # These fields name files to write.

    def __post_init__(self):
        if self.split is None:
            is_by_split = isinstance(self.data, dict) and "test" in self.data
            self.split = "test" if is_by_split else named_split(self.data, "test")
        read = self.data.values() if isinstance(self.data, dict) else [self.data]
        written = (getattr(self, name) for name in self.written)
        check_output_files(*written, inputs=[*read, *model_files(self.model)])

    @property
    def source(self) -> str | dict[str, Any]:
        """Where the rows are, as the tasks' loaders take it."""
        options = {"name": self.data_config, "revision": self.data_revision}
        if all(value is None for value in options.values()):
            return self.data
        return {"path": self.data, **options}


class Scorer:
    """Scores one saved model on one split.

    A task has its own

    - `load`: model and rows; returns which these are;
    - `answer`: all rows; this is timed;
    - `count`: answers → `scores` and further fields of `Evaluation`.
    """

    task: ClassVar[str]
    options_class: ClassVar[type[ScoringOptions]]
    model: PreTrainedModel

    def __init__(self, options: ScoringOptions):
        self.options = options

    def attention_batches(self) -> Iterable[Mapping[str, Tensor]]:
        """The rows as `attention_report` takes them."""
        return ()

    def write_files(self, answers: Any, evaluation: Evaluation) -> None:
        """Write what the options ask for beside the record."""

    def run(self) -> Evaluation:
        """Score the model."""
        data = self.load()
        to_accelerator(self.model)
        started = time.perf_counter()
        self.answers = answers = self.answer()
        seconds = time.perf_counter() - started
        evaluation = Evaluation(
            task=self.task,
            model=str(self.options.model),
            data=data,
            seconds=round(seconds, 3),
            circumstances=current_circumstances(self.model.device, seed=read_results(self.options.model).get("seed")),
            **self.count(answers),
        )
        if self.options.output:  # Save scores first: pictures may fail, and the report takes more memory.
            evaluation.save(self.options.output)
        self.write_files(answers, evaluation)
        if self.options.attention_report:
            evaluation.attention = attention_report(self.model, self.attention_batches())
            if self.options.output:
                evaluation.save(self.options.output)
        return evaluation
