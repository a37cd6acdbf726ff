"""Runs ONNX graphs on tensors of PyTorch."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from torch import Tensor

from reluformers.saved_models import opening

from .precision import SUFFIXES

FOLDER = "onnx"


def saved_precisions(folder: str | Path, name: str) -> list[str]:
    """Number formats in which a graph lies in the folder of an exported model."""
    return [key for key, suffix in SUFFIXES.items() if Path(folder, FOLDER, f"{name}{suffix}.onnx").is_file()]


class Session:
    """A graph in onnxruntime.

    Args:
        folder: of an exported model.
        name: of the graph.
        precision: one of `SUFFIXES`; None for the first of them that is there.

    Raises:
        ValueError: there is no such file, or it cannot be opened.
    """

    def __init__(self, folder: str | Path, name: str, precision: str | None = None):
        found = saved_precisions(folder, name)
        if not found:
            raise ValueError(
                f"{folder}: holds no {FOLDER}/{name}.onnx; `reluformers export MODEL --to onnx` writes such a folder"
            )
        if precision is not None and precision not in found:
            raise ValueError(f"{folder}: precision is {precision!r}, but there are {', '.join(found)}")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3
        path = Path(folder, FOLDER, f"{name}{SUFFIXES[precision or found[0]]}.onnx")
        with opening(folder, f"{FOLDER}/{path.name}"):
            self._session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.outputs = [value.name for value in self._session.get_outputs()]

    def __call__(self, inputs: Mapping[str, Tensor], outputs: Iterable[str]) -> dict[str, Tensor]:
        """Compute some outputs."""
        outputs = list(outputs)
        arrays = {name: np.ascontiguousarray(tensor.detach().cpu().numpy()) for name, tensor in inputs.items()}
        found = self._session.run(outputs, arrays)
        return dict(zip(outputs, map(torch.from_numpy, found), strict=True))

    def layers_of(self, kind: str) -> list[str]:
        """Outputs `kind.0`, `kind.1`, …; none where the graph was exported without them."""
        return [name for name in self.outputs if name.startswith(f"{kind}.")]
