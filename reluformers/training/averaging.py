"""Averages the weights of a run: of several checkpoints, or over the updates as it trains."""

import logging
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from huggingface_hub import save_torch_state_dict
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from transformers import PreTrainedModel, TrainerCallback
from transformers.utils import CONFIG_NAME, SAFE_WEIGHTS_INDEX_NAME

from reluformers.conversion.weights import read_weights
from reluformers.files import atomic_directory, read_json
from reluformers.saved_models import check_finite, check_is_one_model

from .checkpoints import TRAINING_FILES, check_model, checkpoints_of

logger = logging.getLogger(__name__)

WEIGHT_AVERAGE_FILE = "weight_average.pt"
# An average leaves out what belongs to training, and files that hold the weights in another form.
_LEFT_BEHIND = shutil.ignore_patterns(
    *(*TRAINING_FILES, "*.safetensors", SAFE_WEIGHTS_INDEX_NAME, "*.distcp", "global_step*", "latest", "runs"),
    "__pycache__",
)


def last_checkpoints(run_folder: str | Path, count: int) -> list[Path]:
    """Return the last `count` folders `checkpoint-<step>` of a run, by step; a ValueError if it holds fewer."""
    folders = checkpoints_of(run_folder)
    if len(folders) < count:
        raise ValueError(f"{run_folder}: holds {len(folders)} complete checkpoints, but {count} are to be averaged")
    return folders[-count:]


def average_checkpoints(folders: Sequence[str | Path], output: str | Path, *, overwrite: bool = False) -> Path:
    """Write a checkpoint with the `mean_weights` of several.

    Every file that is not weights or training state (config, code, tokenizer, generation config) comes from the last
    checkpoint, so that `output` opens like any checkpoint; it appears complete or not at all.
    """
    folders = [Path(folder) for folder in folders]
    output = Path(output)
    means = mean_weights(folders)
    with atomic_directory(output, *folders, overwrite=overwrite) as temporary:
        shutil.copytree(folders[-1], temporary, ignore=_LEFT_BEHIND, dirs_exist_ok=True)
        save_torch_state_dict(means, temporary)
    return output


def load_average(model: PreTrainedModel, run_folder: Path, count: int) -> None:
    """Give a model the mean of the weights of its run's last `count` checkpoints, or of as many as there are."""
    folders = checkpoints_of(run_folder)[-count:]
    if len(folders) < count:
        logger.warning("only %d checkpoints to average, average_last is %d", len(folders), count)
    if folders:
        averaged = type(model).from_pretrained(None, config=model.config, state_dict=mean_weights(folders))
        model.load_state_dict(averaged.state_dict())


def mean_weights(folders: Sequence[Path]) -> dict[str, Tensor]:
    """Average the weights of checkpoints: w = (1/k) Σ_i w_i.

    Sums are float32 (or wider, where the weights are), the result keeps the stored type. Integer and boolean tensors
    come from the last checkpoint. All weights have to be finite.

    Source: Vaswani et al. 2017, §6.1 (last 5 checkpoints); ReLA's recipe averages the last 5 as well.
    """
    last: dict[str, Tensor] = {}
    sums: dict[str, Tensor] = {}
    for folder in folders:
        check_is_one_model(folder)
        check_model(folder)
        last = read_weights(folder)
        check_finite(last, folder)
        shapes = [{name: weight.shape for name, weight in weights.items()} for weights in (sums, last)]
        if folder is not folders[0] and shapes[0] != shapes[1]:
            raise ValueError(f"{folder}: holds other tensors than {folders[0]}")
        # Tensors of the same shapes may belong to another attention. Another version of a library may add fields.
        config, first = (read_json(one / CONFIG_NAME) for one in (folder, folders[0]))
        shared = config.keys() & first.keys() - {"transformers_version"}
        if differing := sorted(name for name in shared if config[name] != first[name]):
            raise ValueError(f"{folder}: is of another model than {folders[0]}, by {', '.join(differing)}")
        for name, weight in last.items():
            wide = weight.to(torch.promote_types(weight.dtype, torch.float32))
            sums[name] = sums[name] + wide if name in sums else wide
    return {
        name: (sums[name] / len(folders)).to(weight.dtype) if weight.is_floating_point() else weight
        for name, weight in last.items()
    }


class WeightAverage(TrainerCallback):
    """Keeps a moving average of a model's weights: a ← decay · a + (1 − decay) · w after each update.

    It starts as the weights after the first update. Buffers are those of the model.

    Args:
        model: what is trained; on its device.
        decay: in (0, 1).
    """

    def __init__(self, model: nn.Module, decay: float):
        self.model = model
        self.average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay)).requires_grad_(False)

    def on_step_end(self, args, state, control, **kwargs):
        self.average.update_parameters(self.model)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Give the model the average for the time of a block; its own weights come back untouched."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _swap(self) -> None:
        for weight, average in zip(self.model.parameters(), self.average.module.parameters(), strict=True):
            weight.data, average.data = average.data, weight.data

    def replace_weights(self) -> None:
        """Give the model the average for good."""
        self.model.load_state_dict(self.average.module.state_dict())

    def save(self, folder: str | Path) -> None:
        """Write the average beside a checkpoint's other files."""
        torch.save(self.average.state_dict(), Path(folder, WEIGHT_AVERAGE_FILE))

    def load(self, folder: str | Path) -> None:
        """Go on from the average of a checkpoint."""
        path = Path(folder, WEIGHT_AVERAGE_FILE)
        self.average.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
