"""Runs ONNX graphs on tensors of PyTorch, alone and as models."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import ClassVar

import numpy as np
import onnxruntime
import torch
from torch import Tensor
from transformers import AutoConfig, GenerationConfig, PreTrainedConfig, PreTrainedModel

from . import FOLDER, SUFFIXES


class Session:
    """A graph in onnxruntime.

    Args:
        folder: of an exported model.
        name: of the graph.
        precision: one of `SUFFIXES`; None for the first of them that is there.
    """

    def __init__(self, folder: str | Path, name: str, precision: str | None = None):
        files = {key: Path(folder, FOLDER, f"{name}{suffix}.onnx") for key, suffix in SUFFIXES.items()}
        path = files[precision or next((key for key, file in files.items() if file.is_file()), "fp32")]
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.outputs = [value.name for value in self._session.get_outputs()]

    def __call__(self, inputs: Mapping[str, Tensor], outputs: Iterable[str]) -> dict[str, Tensor]:
        """Compute some outputs."""
        outputs = list(outputs)
        arrays = {name: np.ascontiguousarray(tensor.detach().cpu().numpy()) for name, tensor in inputs.items()}
        results = self._session.run(outputs, arrays)
        return dict(zip(outputs, map(torch.from_numpy, results), strict=True))

    def layers_of(self, kind: str) -> list[str]:
        """Outputs `kind.0`, `kind.1`, …; none where the graph was exported without them."""
        return [name for name in self.outputs if name.startswith(f"{kind}.")]


class OnnxModel(PreTrainedModel):
    """A model without weights of its own, for what takes a `PreTrainedModel`; made of a configuration and sessions."""

    config_class = PreTrainedConfig
    # In the order in which the graphs run.
    graph_names: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def from_folder(cls, folder: str | Path, precision: str | None = None) -> "OnnxModel":
        """Open an exported folder.

        Args:
            folder: of `reluformers export --to onnx`.
            precision: one of `SUFFIXES`; None for the finest that is there.
        """
        sessions = [Session(folder, name, precision) for name in cls.graph_names]
        model = cls(AutoConfig.from_pretrained(folder), *sessions)
        if cls.can_generate():
            model.generation_config = GenerationConfig.from_pretrained(folder)
        model.name_or_path = str(folder)
        return model.eval()

    @property
    def device(self) -> torch.device:
        """The CPU."""
        return torch.device("cpu")

    @property
    def dtype(self) -> torch.dtype:
        """Data type of inputs and outputs, whatever the graph computes in."""
        return torch.float32

    def set_attn_implementation(self, *_, **__) -> None:
        """Change nothing: the graph is what it is."""

    def attentions_of(self, session: Session, *kinds: str) -> list[str]:
        """Outputs with the weights of each layer; a ValueError says that the graphs were exported without."""
        names = [name for kind in kinds for name in session.layers_of(kind)]
        if not names:
            raise ValueError(f"{self.name_or_path}: has no attentions; export the model with --attentions")
        return names
