# Copyright 2026 the reluformers authors
# SPDX-License-Identifier: Apache-2.0
"""Configurations of the encoder–decoder families for translation."""

import copy
from typing import Any, ClassVar, Literal

from .configuration_base import FeedForwardActivation, TransformerConfig
from .field_checks import check_number, strict_fields

PositionEmbeddingType = Literal["sinusoidal", "sinusoidal_halves", "sinusoidal_marian", "sinusoidal_sine", "learned"]
EmbeddingNorm = Literal["none", "fix_norm", "layer_norm"]
Initialization = Literal["normal", "xavier", "small"]

_SIZES = (
    *("vocab_size", "decoder_vocab_size", "d_model", "max_position_embeddings", "encoder_layers", "decoder_layers"),
    *("encoder_attention_heads", "decoder_attention_heads", "encoder_ffn_dim", "decoder_ffn_dim"),
)


@strict_fields
class Seq2SeqTransformerConfig(TransformerConfig):
    r"""Configuration of an encoder–decoder Transformer; with its defaults a softmax baseline.

    Names follow BART and Marian. The defaults are the "base" model of Vaswani et al. 2017. Beside its own it has the
    fields of `TransformerConfig`.

    Args:
        vocab_size: number of source tokens, and of target tokens if `decoder_vocab_size` is None.
        decoder_vocab_size: number of target tokens; None means that both sides share one vocabulary.
        d_model, encoder_layers, decoder_layers: width and numbers of layers, as in BART.
        encoder_attention_heads, decoder_attention_heads, encoder_ffn_dim, decoder_ffn_dim: other sizes, as in BART.
        encoder_attention, decoder_attention, cross_attention: attention of one site; None means `attention`.
        embedding_norm: `"fix_norm"` gives embedding rows unit length at the input and in the output layer;
            `"layer_norm"` normalises their sum with the positions (BART).
        scale_embedding: multiply embeddings by √d_model at the input.
        position_embedding_type: `"learned"`, or a layout of `SinusoidalPositions`.
        max_position_embeddings: longest sequence, in tokens.
        position_offset: unused rows at the start of the table of learned positions; BART has two.
        tying: which embeddings share one matrix: with `"all"` source, target and output share it, with `"decoder"`
            target and output, with `"none"` nothing does. `tie_word_embeddings=False` sets `"none"`.
        output_bias, embedding_bias: whether the output layer and the input add a bias.
        embedding_dropout: dropout after the positions; None means `dropout`.
        word_dropout: share of input tokens that become `unk_token_id` in training, in [0, 1).
        label_shift: the decoder's first input, before the labels: `"start_token"` means `decoder_start_token_id`,
            `"last_label"` means the last label itself (mBART, whose labels end with a language).
        alignment_layer: decoder layer, from 0, whose cross-attention aligns words; None means the last but one.
        alignment_head: head of this layer, from 0; None means the mean of all heads.
        alignment_shifted: take a token's alignment from the step that reads it, not from the step before.
        initialization: start of linear maps: `"normal"` N(0, `initializer_range`), `"xavier"` uniform with q, k, v as
            one map, or `"small"`, SmallInit N(0, √(2/(5d))) of QKNorm.

    Raises:
        ValueError: a field has a value that is not allowed, alone or beside the others.
    """

    model_type = "seq2seq_transformer"
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["past_key_values", "cache", "regularization_loss", "null_rate"]
    attribute_map: ClassVar[dict[str, str]] = {
        "hidden_size": "d_model",
        "num_attention_heads": "encoder_attention_heads",
        "num_hidden_layers": "encoder_layers",
        "intermediate_size": "encoder_ffn_dim",
    }
    # FSDP splits the model layer by layer. Embeddings and the output layer may be one weight, so they stay together.
    base_model_fsdp_plan: ClassVar[dict[str, str]] = dict.fromkeys(
        ("encoder.layers.*", "decoder.layers.*"), "free_full_weight"
    )
    sites: ClassVar[tuple[str, ...]] = ("encoder", "decoder", "cross")

    vocab_size: int = 32000
    decoder_vocab_size: int | None = None
    d_model: int = 512
    encoder_layers: int = 6
    decoder_layers: int = 6
    encoder_attention_heads: int = 8
    decoder_attention_heads: int = 8
    encoder_ffn_dim: int = 2048
    decoder_ffn_dim: int = 2048
    encoder_attention: Any = None
    decoder_attention: Any = None
    cross_attention: Any = None
    activation_function: FeedForwardActivation = "relu"
    norm_position: Literal["pre", "post"] = "post"
    norm_eps: float | int = 1e-5
    embedding_norm: EmbeddingNorm = "none"
    scale_embedding: bool = True
    position_embedding_type: PositionEmbeddingType = "sinusoidal"
    max_position_embeddings: int = 1024
    position_offset: int = 0
    tying: Literal["all", "decoder", "none"] = "all"
    attention_bias: bool = True
    output_bias: bool = False
    embedding_bias: bool = False
    dropout: float | int = 0.1
    attention_dropout: float | int = 0.1
    embedding_dropout: float | int | None = None
    word_dropout: float | int = 0.0
    label_smoothing: float | int = 0.1
    label_shift: Literal["start_token", "last_label"] = "start_token"
    initialization: Initialization = "xavier"
    pad_token_id: int = 0
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    unk_token_id: int | None = 3
    decoder_start_token_id: int | None = 1
    use_cache: bool = True
    is_encoder_decoder: bool = True
    tie_word_embeddings: bool | None = None
    alignment_layer: int | None = None
    alignment_head: int | None = None
    alignment_shifted: bool = False

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        # When a layer or head leaves the model, what was measured of its alignments leaves too.
        if name == "decoder_layers" and self.alignment_layer is not None and self.alignment_layer >= value:
            self.alignment_layer, self.alignment_head, self.alignment_shifted = None, None, False
        elif name == "decoder_attention_heads" and self.alignment_head is not None and self.alignment_head >= value:
            self.alignment_head = None
        if name == "tying":
            super().__setattr__("tie_word_embeddings", value != "none")
        elif name == "tie_word_embeddings" and value is False:
            super().__setattr__("tying", "none")

    def __post_init__(self, **kwargs):
        if self.tie_word_embeddings is None:
            self.tie_word_embeddings = self.tying != "none"
        super().__post_init__(**kwargs)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs):
        """Build as transformers does; numbers of layers and heads first, as given alignments are of these."""
        counts = {name: kwargs[name] for name in ("decoder_layers", "decoder_attention_heads") if name in kwargs}
        return super().from_dict(config_dict, **{**counts, **kwargs})

    @property
    def base_model_tp_plan(self) -> dict[str, str]:
        """Rules of tensor parallelism."""
        attentions = {"encoder": "encoder.layers.*.self_attn", "decoder": "decoder.layers.*.self_attn"}
        attentions["cross"] = "decoder.layers.*.cross_attn"
        embeddings = dict.fromkeys(("encoder.embed_tokens", "decoder.embed_tokens"), "embedding_rowwise")
        return embeddings | self.parallel_plan(attentions, ("encoder.layers.*.mlp", "decoder.layers.*.mlp"))

    @property
    def target_vocab_size(self) -> int:
        """Number of target tokens, whether the vocabulary is shared or not."""
        return self.vocab_size if self.decoder_vocab_size is None else self.decoder_vocab_size

    def get_text_config(self, decoder: bool | None = None, encoder: bool | None = None):
        """Copy as transformers does; that for the decoder has a vocabulary size even without `decoder_vocab_size`."""
        config = self
        if decoder and not encoder and self.decoder_vocab_size is None:
            config = copy.copy(self)
            config.decoder_vocab_size = self.vocab_size
        return super(Seq2SeqTransformerConfig, config).get_text_config(decoder=decoder, encoder=encoder)

    def validate_fields(self) -> None:
        """Check ranges and combinations; the `ValueError` names the field, its value and what is allowed."""
        super().validate_fields()
        owner = type(self).__name__
        self._check_numbers({**dict.fromkeys(_SIZES, "[1, inf)"), "position_offset": "[0, inf)"}, integer=True)
        self._check_numbers(dict.fromkeys(("embedding_dropout", "word_dropout"), "[0, 1)"))
        counts = {"alignment_layer": self.decoder_layers, "alignment_head": self.decoder_attention_heads}
        self._check_numbers({name: f"[0, {count - 1}]" for name, count in counts.items()}, integer=True)
        # If the model cannot write the end token, every translation would go on to the longest length.
        ends = self.eos_token_id if isinstance(self.eos_token_id, list) else [self.eos_token_id]
        for token in ends:
            if token is not None:
                check_number(owner, "eos_token_id", token, f"[0, {self.target_vocab_size - 1}]", integer=True)
        if self.position_offset and self.position_embedding_type != "learned":
            raise ValueError(
                f"{owner}.position_offset is {self.position_offset}, but position_embedding_type is "
                f"{self.position_embedding_type!r}: only learned positions have rows to leave out"
            )
        if self.embedding_norm == "layer_norm" and self.norm_type != "layer_norm":
            raise ValueError(f"{owner}.embedding_norm is 'layer_norm', but norm_type is {self.norm_type!r}")
        if self.tying == "all" and self.target_vocab_size != self.vocab_size:
            raise ValueError(
                f"{owner}.tying is 'all', but vocab_size ({self.vocab_size}) and decoder_vocab_size "
                f"({self.decoder_vocab_size}) differ: use 'decoder' or 'none'"
            )


@strict_fields
class ReLUFormerConfig(Seq2SeqTransformerConfig):
    """ReLUFormer (Shen et al. 2023): relu weights over γ√(n/2) and the regulariser; IWSLT'14 sizes of App. A.2."""

    model_type = "reluformer"

    attention: Any = "reluformer"
    encoder_attention_heads: int = 4
    decoder_attention_heads: int = 4
    encoder_ffn_dim: int = 1024
    decoder_ffn_dim: int = 1024
    normalization_loss_weight: float | int = 0.1
    entropy_loss_weight: float | int = 0.02


@strict_fields
class ReLAConfig(Seq2SeqTransformerConfig):
    """ReLA (Zhang et al. 2021): rectified linear attention with gated RMSNorm, as the released code builds it."""

    model_type = "rela"

    attention: Any = "rela-g"
    norm_eps: float | int = 1e-8
    position_embedding_type: PositionEmbeddingType = "sinusoidal_halves"
    tying: Literal["all", "decoder", "none"] = "decoder"
    embedding_bias: bool = True
    activation_dropout: float | int = 0.1


@strict_fields
class QKNormConfig(Seq2SeqTransformerConfig):
    """QKNorm (Henry et al. 2020): cosine attention with a learned scale, PreNorm, FixNorm and SmallInit."""

    model_type = "qknorm"

    attention: Any = "qknorm"
    norm_position: Literal["pre", "post"] = "pre"
    embedding_norm: EmbeddingNorm = "fix_norm"
    output_bias: bool = True
    dropout: float | int = 0.3
    attention_dropout: float | int = 0.3
    activation_dropout: float | int = 0.3
    word_dropout: float | int = 0.1
    initialization: Initialization = "small"
