"""What models that are computed by onnxruntime have in common."""

import torch
from transformers import PreTrainedConfig, PreTrainedModel


class OnnxModel(PreTrainedModel):
    """A model without weights of its own, for what takes a `PreTrainedModel`."""

    config_class = PreTrainedConfig

    @property
    def device(self) -> torch.device:
        """The processor."""
        return torch.device("cpu")

    @property
    def dtype(self) -> torch.dtype:
        """Data type of inputs and outputs, whatever the graph computes in."""
        return torch.float32

    def set_attn_implementation(self, *_, **__) -> None:
        """Change nothing: the graph is what it is."""
