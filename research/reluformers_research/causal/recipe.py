"""Recipes of causal models: their sections and checks."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from transformers import CONFIG_MAPPING, PreTrainedConfig

from reluformers.configuration.configuration_attention import AttentionConfig
from reluformers.data.sources import DataSection
from reluformers.training.recipe import Recipe, TaskTrainingArguments

from .text import START

_USUAL = {"llama": {}, "gpt2": {"embd_pdrop": 0.0, "resid_pdrop": 0.0, "attn_pdrop": 0.0}}


@dataclass
class TextSection(DataSection):
    """Which text: Parquet files of `reluformers_research.causal.text`, beside its tokenizer.json.

    Args:
        length: of a row of training, in tokens.
    """

    length: int = 256

    def __post_init__(self):
        if self.path is not None:
            raise ValueError(f"data.path is {self.path!r}, but the splits of text are files: leave it out")


@dataclass
class CausalRecipe(Recipe):
    """Everything that defines the training of a causal model.

    Args:
        model: `attention` (a preset's name or fields of `AttentionConfig`), the weights of ReLUFormer's regulariser
            (`normalization_loss_weight`, `entropy_loss_weight`, `entropy_bound`), `model_type` ("llama" or "gpt2", the
            latter without dropout), and the sizes by their names in `LlamaConfig`.
        data: see the section.
        training: fields of `TaskTrainingArguments`, all but `output_dir`.
    """

    task: ClassVar[str] = "text-generation"
    arguments_class: ClassVar[type[TaskTrainingArguments]] = TaskTrainingArguments
    regularizer: ClassVar[dict[str, float]] = {
        "normalization_loss_weight": 0.0,
        "entropy_loss_weight": 0.0,
        "entropy_bound": 0.7,
    }
    model_options: ClassVar[tuple[str, ...]] = (*Recipe.model_options, "attention", "model_type", *regularizer)
    decided_fields: ClassVar[dict[str, str]] = {
        "start": "has no meaning here: models start from nothing",
        "vocab_size": "follows from the tokenizer: leave it out",
    }

    model: dict[str, Any] = field(default_factory=dict)
    data: TextSection = field(default_factory=TextSection)
    training: dict[str, Any] = field(default_factory=dict)

    @staticmethod
    def make_config(preset: str, **fields: Any) -> PreTrainedConfig:
        """Configuration with some fields, whatever the attention."""
        AttentionConfig.parse(fields.pop("attention", preset))
        model_type = fields.pop("model_type", "llama")
        own = {name: value for name, value in fields.items() if name not in CausalRecipe.regularizer}
        usual = {"bos_token_id": START, "eos_token_id": START, **_USUAL[model_type]}
        return CONFIG_MAPPING[model_type](**{**usual, **own})

    @property
    def attention(self) -> AttentionConfig:
        """The mathematics of the attention."""
        return AttentionConfig.parse(self.model.get("attention", self.model.get("preset", "softmax")))

    @property
    def loss_weights(self) -> dict[str, float]:
        """The regulariser's weights and bound."""
        return {name: self.model.get(name, value) for name, value in self.regularizer.items()}
