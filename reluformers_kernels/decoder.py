# Copyright 2026 the reluformers authors
# SPDX-License-Identifier: Apache-2.0
"""Translation by one call of compiled code: the library's encoder–decoder models on a CPU.

A model is read into structures of pointers to its own weights, each time anew, so that nothing is old when they have
changed. Weights of bfloat16 stay as they are, and all else is float32, where PyTorch rounds after each operator.

The compiled code computes the model a second time, so it must know what it leaves out. The names below are all that it
reads: a model with another field, parameter, module, hook or dtype raises `Unknown` and goes on in PyTorch. Before its
first use, states and logits of one sentence are compared with PyTorch's own.
"""

import copy
import ctypes
import dataclasses
import importlib
import logging
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig

from .compiled import native
from .linear import PackedLinear
from .tensors import is_watched

try:
    native_decoder = native and importlib.import_module(f"{native.__name__}.decoder")
except ImportError:  # A downloaded repository of kernels has only the attention, and no compiled decoder.
    native_decoder = None

FIRST_CAPACITY = 64  # The cache of the compiled search first has room for 64 tokens after the prompt.
_KEPT = "_translator"  # A model keeps its `Translator` in the attribute `_translator`.
# A model keeps in the attribute `_proven_translator` which `structure` and parts of its `Translator` were proven.
_PROVEN = "_proven_translator"
_OWN = "reluformers.modeling."
_OF_TORCH = (nn.Linear, nn.LayerNorm, nn.Embedding, nn.Identity, nn.ModuleList, PackedLinear)
# Hooks of transformers' output capturing only observe, so the compiled search may leave them out.
_COLLECTORS = "transformers.utils.output_capturing"
_NORMS = {"LayerNorm": "layer", "RMSNorm": "rms", "ScaleNorm": "unit_length"}
_NORMS |= {f"Gated{name}": _NORMS[name] for name in ("LayerNorm", "RMSNorm")}
_BACKENDS = ("eager", "fused")
_UNIT_EPS = 1e-12
_DTYPES = (torch.float32, torch.bfloat16)

# Of a model's configuration the compiled search knows the fields that the compiled code or the modules' construction
# reads, and those of training.
_CONFIG_FIELDS = """
attention encoder_attention decoder_attention cross_attention attention_bias attention_output_bias
vocab_size decoder_vocab_size d_model encoder_layers decoder_layers encoder_attention_heads decoder_attention_heads
encoder_ffn_dim decoder_ffn_dim activation_function ffn_bias feed_forward_norm feed_forward_temperature swish_beta
learned_swish_beta norm_type norm_position norm_eps scale_norm_init embedding_norm scale_embedding embedding_bias
position_embedding_type max_position_embeddings position_offset tying tie_word_embeddings output_bias
initialization initializer_range dropout attention_dropout activation_dropout embedding_dropout word_dropout
label_smoothing label_shift normalization_loss_weight entropy_loss_weight entropy_bound format_version use_cache
pad_token_id bos_token_id eos_token_id unk_token_id decoder_start_token_id
alignment_layer alignment_head alignment_shifted
"""
_ATTENTION_FIELDS = """
score scale learned_scale scale_form scale_length query_key_norm value_norm activation normalizer
length_coefficient length_exponent learned_length_exponent threshold learned_threshold threshold_per_head
threshold_form exclusive_output output_norm output_norm_init output_norm_eps output_gate
"""
# Fields of a configuration that the compiled code does not read must have the value that changes nothing; with any
# other value PyTorch computes.
_NEUTRAL_FIELDS: dict[str, Any] = {}
# The names of all that a module may hold are known: parameters, buffers, modules and plain attributes.
_STACK_NAMES = "embed_tokens embed_positions embedding_bias embedding_norm layers norm"
_LAYER_NAMES = "self_attn self_attn_norm cross_attn cross_attn_norm mlp mlp_norm is_pre_norm dropout drop_path_rate"
_ATTENTION_NAMES = (
    "attention q_proj k_proj v_proj gate_proj out_proj query_norm key_norm output_norm scale threshold "
    "length_exponent scaling head_dim dropout layer_idx"
)
_FEED_FORWARD_NAMES = (
    "fc1 fc_linear fc2 norm swish_beta activation_name has_rectified_values initial_swish_beta temperature dropout"
)
_NORM_NAMES = "weight bias gate eps normalized_shape elementwise_affine dim initial"
_LINEAR_NAMES = "weight bias in_features out_features packed sums blocks"
_POSITION_NAMES = "weight table num_embeddings embedding_dim dim layout max_positions"

_PROOF_TOKENS = 4  # The proof takes more than one token, as the weights of a single key hide mistakes.
_PROOF_TOLERANCE = 1e-3  # In float32, ‖compiled − PyTorch‖ / ‖PyTorch‖ may be at most 0.001.

logger = logging.getLogger(__name__)


class Unknown(Exception):
    """Reason why PyTorch computes a model or a call, as the compiled code does not know it."""


class Translator:
    """A translation model as compiled code reads it: pointers to its weights, which stay its own.

    Raises `Unknown` where the compiled code would compute something else.
    """

    def __init__(self, model: nn.Module):
        config = model.config
        if config._attn_implementation not in _BACKENDS:
            raise Unknown(f"attn_implementation is {config._attn_implementation!r}")
        self.known: tuple | None = None  # `known` holds the last `Call` of search.py with its result.
        self.refusal: str | None = None  # `refusal` says how a comparison of compiled code with PyTorch failed.
        self.kept: list[Any] = []
        self.derived: list[tuple[Callable[[], Tensor], Tensor]] = []
        self.read: dict[nn.Module, None] = dict.fromkeys((model, model.model))
        self.width = config.d_model
        self.inner = 0
        self.seen = [_look_at(module, module is model) for module in model.modules()]
        _check_fields(config, _CONFIG_FIELDS)
        _check_names(model, "model lm_head")
        _check_names(model.model, "encoder decoder")
        _check_shapes(model)
        self.fields = _fields_of(model)
        self.structure = [seen.structure() for seen in self.seen], self.fields
        proven_structure, self.proven = vars(model).get(_PROVEN, (None, set()))
        if proven_structure != self.structure:
            self.proven = set()
        self.is_packed = isinstance(model.lm_head, PackedLinear)
        encoder = model.model.encoder
        decoder = model.model.decoder
        if any(vars(stack.config) != vars(config) for stack in (encoder, decoder)):
            raise Unknown("encoder and decoder have configurations of their own")
        self.encoder = self._stack(encoder)
        self.decoder = self._stack(decoder)
        self.logits = self._linear(model.lm_head)
        self.positions = config.max_position_embeddings
        self.vocabularies = encoder.embed_tokens.num_embeddings, decoder.embed_tokens.num_embeddings
        for module in model.modules():
            if module not in self.read and not isinstance(module, (nn.ModuleList, nn.Identity)):
                raise Unknown(f"a module {type(module).__name__}")

    @classmethod
    def of(cls, model: nn.Module) -> "Translator":
        """Read the model as it is now, anew where a module or the memory of a weight has changed.

        Raises:
            Unknown: the compiled code does not know the model or the settings of torch.
        """
        if native_decoder is None or not native.is_available():
            raise Unknown("there is no compiled code for this CPU")
        if model.training or torch.is_grad_enabled() or is_watched():
            raise Unknown("the model is in training mode, or gradients or operators are recorded")
        if torch.is_autocast_enabled("cpu") or _is_torch_changed():
            raise Unknown("autocast, a default dtype or device, a mode, or a hook of every module")
        try:
            translator = vars(model).get(_KEPT)
            if translator is None or not translator.is_current(model):
                translator = vars(model)[_KEPT] = cls(model)
        except Unknown:
            vars(model).pop(_KEPT, None)  # An old `Translator` would keep the weights in memory.
            raise
        if translator.refusal is not None:
            raise Unknown(translator.refusal)
        for compute, numbers in translator.derived:
            numbers.copy_(compute())
        return translator

    def is_current(self, model: nn.Module) -> bool:
        """Whether each module and the memory of each weight is what it was."""
        is_same = self.seen[0].module is model and all(seen.is_same() for seen in self.seen)
        return is_same and self.fields == _fields_of(model)

    def __reduce__(self):  # A copy of a model gets no `Translator`, so that its weights are read anew.
        return type(None), ()

    def _keep(self, value: Any) -> Any:
        self.kept.append(value)
        return value

    def _know(self, module: nn.Module, names: str) -> None:
        """Note that a module is read, and hold it to the names that are read."""
        _check_names(module, names)
        self.read[module] = None

    def _derive(self, compute: Callable[[], Tensor]) -> Tensor:
        """Numbers in float32 that are computed anew for each call."""
        # Inference mode is left here, because a later call outside of it could not write to tensors made in it.
        with torch.inference_mode(False):
            numbers = compute().detach().float().clone()
        self.derived.append((compute, numbers))
        return numbers

    def _vector(self, tensor: Tensor | None) -> Tensor | None:
        if tensor is None or tensor.dtype == torch.float32:
            return tensor
        # An alias keeps the parameter's memory, because another thread may give the parameter other memory.
        memory = tensor.detach()
        return self._derive(lambda: memory)

    def _vector_or(self, tensor: Tensor | None, number: float) -> Tensor:
        if tensor is None:
            return torch.tensor([number], dtype=torch.float32)
        return self._vector(tensor)

    def _linear(self, layer: nn.Module | None) -> Any:
        if layer is None:
            return native_decoder.Linear()
        self._know(layer, _LINEAR_NAMES)
        shape = {"inputs": layer.in_features, "outputs": layer.out_features}
        if isinstance(layer, PackedLinear) != self.is_packed:
            raise Unknown("linear layers of two kinds")
        if self.is_packed:
            packed, scales, sums = layer.blocks
            linear = native_decoder.Linear.of(packed=packed, scales=scales, sums=sums, bias=layer.bias, **shape)
            return self._keep(linear)
        weight = layer.weight.detach()
        factors = None
        if hasattr(layer, "unit_weight"):
            factors = self._derive(lambda: _inverse_lengths(weight))
        vectors = {"bias": self._vector(layer.bias), "factors": factors}
        is_bfloat16 = weight.dtype == torch.bfloat16
        return self._keep(native_decoder.Linear.of(weight=weight, is_bfloat16=is_bfloat16, **vectors, **shape))

    def _norm(self, norm: nn.Module | None, width: int) -> Any:
        if norm is None or type(norm) is nn.Identity:
            return native_decoder.Norm()
        self._know(norm, _NORM_NAMES)
        kind = _NORMS.get(type(norm).__name__)
        if kind is None:
            raise Unknown(f"a norm {type(norm).__name__}")
        gain = "factor" if kind == "unit_length" else "gain"
        vectors = {gain: norm.weight, "bias": getattr(norm, "bias", None), "gate": getattr(norm, "gate", None)}
        vectors = {name: self._vector(vector) for name, vector in vectors.items()}
        number = native_decoder.NORMS.index(kind)
        return self._keep(native_decoder.Norm.of(width=width, **vectors, eps=norm.eps, kind=number))

    @staticmethod
    def _unit_length(is_wanted: bool) -> Any:
        return native_decoder.Norm(eps=_UNIT_EPS, kind=native_decoder.NORMS.index("unit_length") if is_wanted else 0)

    def _attention(self, site: nn.Module) -> Any:
        """Fill the structure of C for one attention module."""
        self._know(site, _ATTENTION_NAMES)
        config = site.attention
        _check_fields(config, _ATTENTION_FIELDS)
        is_cosine = config.score == "cosine"
        head_dim = site.head_dim
        heads = self.width // head_dim
        if heads * head_dim != self.width:
            raise Unknown(f"heads of {head_dim} numbers in states of {self.width}")
        site_of_c = native_decoder.Attention.of(
            heads=heads,
            query=self._linear(site.q_proj),
            key=self._linear(site.k_proj),
            value=self._linear(site.v_proj),
            gate=self._linear(site.gate_proj),
            output=self._linear(site.out_proj),
            query_norm=self._norm(site.query_norm, head_dim),
            key_norm=self._norm(site.key_norm, head_dim),
            value_norm=self._unit_length(config.value_norm == "l2"),
            query_length=self._unit_length(is_cosine),
            key_length=self._unit_length(is_cosine),
            output_norm=self._norm(site.output_norm, self.width),
            threshold_step=int(config.threshold_per_head and site.threshold is not None),
            scale=self._vector_or(site.scale, site.scaling),
            thresholds=self._vector_or(site.threshold, config.threshold),
            exponent=self._vector_or(site.length_exponent, config.length_exponent),
            coefficient=config.length_coefficient,
            activation=_number_of(config.activation, native_decoder.ACTIVATIONS),
            scale_form=_number_of(config.scale_form, native_decoder.LENGTH_FORMS),
            threshold_form=_number_of(config.threshold_form, native_decoder.LENGTH_FORMS),
            is_sum_one=config.normalizer == "sum",
            gate_form=_number_of(config.output_gate, native_decoder.GATES),
            is_exclusive=config.exclusive_output,
        )
        return self._keep(site_of_c)

    def _layer(self, layer: nn.Module) -> Any:
        """Fill the structure of C for one layer of the encoder or decoder."""
        self._know(layer, _LAYER_NAMES)
        own = layer.self_attn
        cross = getattr(layer, "cross_attn", None)
        mlp = layer.mlp
        self._know(mlp, _FEED_FORWARD_NAMES)
        name = "swish" if mlp.activation_name == "silu" else mlp.activation_name
        beta = 1.0 if mlp.activation_name == "silu" else mlp.initial_swish_beta
        self.inner = max(self.inner, mlp.fc1.out_features)
        sites = {"own": self._attention(own), "own_norm": self._norm(layer.self_attn_norm, self.width)}
        if cross is not None:
            cross_site = self._attention(cross)
            # In cross-attention a query has no value of its own to remove.
            cross_site.is_exclusive = False
            sites |= {"cross": cross_site, "cross_norm": self._norm(layer.cross_attn_norm, self.width)}
        layer_of_c = native_decoder.Layer.of(
            **sites,
            mlp_norm=self._norm(layer.mlp_norm, self.width),
            inner_norm=self._norm(mlp.norm, self.width),
            fc1=self._linear(mlp.fc1),
            fc_linear=self._linear(mlp.fc_linear),
            fc2=self._linear(mlp.fc2),
            beta=self._vector_or(mlp.swish_beta, beta),
            temperature=mlp.temperature,
            activation=_number_of(name, native_decoder.ACTIVATIONS),
            has_rectified_values=mlp.has_rectified_values,
        )
        return self._keep(layer_of_c)

    def _stack(self, stack: nn.Module) -> Any:
        """Fill the structure of C for the encoder or the decoder."""
        self._know(stack, _STACK_NAMES)
        config = stack.config
        embedding = stack.embed_tokens
        places = stack.embed_positions
        self._know(embedding, "weight num_embeddings embedding_dim padding_idx")
        self._know(places, _POSITION_NAMES)
        is_pre_norm = config.norm_position == "pre"
        if any(layer.is_pre_norm != is_pre_norm for layer in stack.layers):
            raise Unknown("a configuration that has changed")
        heads = {self.width // layer.self_attn.head_dim for layer in stack.layers}
        heads |= {self.width // layer.cross_attn.head_dim for layer in stack.layers if hasattr(layer, "cross_attn")}
        if len(heads) > 1:
            raise Unknown("heads of several widths")
        layers = self._keep((native_decoder.Layer * len(stack.layers))(*map(self._layer, stack.layers)))
        table = places.weight if isinstance(places, nn.Embedding) else places.table
        stack_of_c = native_decoder.Stack.of(
            width=self.width,
            vocabulary=embedding.num_embeddings,
            longest=config.max_position_embeddings,
            is_bfloat16=embedding.weight.dtype == torch.bfloat16,
            embeddings=embedding.weight,
            positions=self._vector(table[config.position_offset :]),
            bias=self._vector(stack.embedding_bias),
            token_norm=self._unit_length(config.embedding_norm == "fix_norm"),
            sum_norm=self._norm(stack.embedding_norm, self.width),
            last_norm=self._norm(stack.norm, self.width),
            layers=ctypes.addressof(layers),
            layer_count=len(layers),
            heads=next(iter(heads), 1),
            factor=math.sqrt(config.d_model) if config.scale_embedding else 1.0,
            is_pre_norm=is_pre_norm,
        )
        return self._keep(stack_of_c)

    def compare_with_pytorch(self, source: Tensor, mask: Tensor) -> None:
        """Compare the compiled states and logits of one sentence with PyTorch's, once for each model that is read.

        Args:
            source: tokens [1, source length], or states of the encoder [1, source length, width].
            mask: bool [1, source length], True = visible.

        Raises:
            Unknown: they differ by more than rounding. The model stays with PyTorch from then on.
        """
        is_encoded = source.is_floating_point()
        parts = {"decoder"} if is_encoded else {"encoder", "decoder"}
        # The proof leaves out int8: PyTorch rounds rows to 7 bits and the compiled code to 8, so small models differ
        # by rounding alone.
        if parts <= self.proven or self.is_packed:
            return
        model = self.seen[0].module
        # The parts of a model count as proven before the proof runs, as `encode` leads to the proof again.
        self.proven = self.proven | parts
        vars(model)[_PROVEN] = self.structure, self.proven
        if model.dtype != torch.float32:
            # For the proof a float32 copy of the model computes, because PyTorch rounds more often in bfloat16 than
            # the compiled code.
            model = copy.deepcopy(model).float()
        given = {"encoder_outputs": (source.float(),)} if is_encoded else {"input_ids": source}
        length = min(_PROOF_TOKENS, self.positions)
        prompt = torch.arange(1, 7 * length, 7)[None] % self.vocabularies[1]
        expected = model(**given, attention_mask=mask.long(), decoder_input_ids=prompt, use_cache=False)
        options = SearchOptions(1, 1, length + 1, 0, [], [], False, 1.0, 0)
        theirs = {"logits": expected.logits[0, -1], "states": expected.encoder_last_hidden_state[mask]}
        ours = {"logits": torch.zeros(self.logits.outputs)}
        try:
            if not is_encoded:
                ours["states"] = self.encode(source, mask)[mask]
            self._search(source, mask, prompt, options, ours["logits"])
        except Unknown:  # The compiled code met an infinity or NaN, which PyTorch may have too.
            ours["logits"].fill_(torch.nan)
        for name, numbers in ours.items():
            distance = float((numbers - theirs[name]).norm() / theirs[name].norm().clamp_min(1e-30))
            if theirs[name].isfinite().all() and not distance <= _PROOF_TOLERANCE:
                self.refusal = f"its {name} are not those of PyTorch: they differ by {distance:.2g} of their length"
                vars(self.seen[0].module).pop(_PROVEN)
                logger.warning("Compiled code does not translate with this model: %s", self.refusal)
                raise Unknown(self.refusal)

    def encode(self, source: Tensor, mask: Tensor) -> Tensor:
        """Compute states of the encoder [*source.shape, width] in float32, with zeros where the mask is False."""
        self.compare_with_pytorch(source[:1], mask[:1])
        no_layers = native_decoder.Stack()
        search = self._begin(source, mask, decoder=ctypes.addressof(no_layers), beams=1, longest=1)
        search.keep(lengths=torch.zeros(search.parts, dtype=torch.long), is_done=mask.new_ones(len(source)))
        search.run("translate", search.parts)
        _check_finite(search)
        states = torch.zeros(*source.shape, self.width)
        states[mask] = search._states[:, : self.width]
        return states

    def _begin(self, source: Tensor, mask: Tensor, **fields: int) -> Any:
        """Make C's `Search` with all sizes, for source tokens or the encoder's states."""
        shape = source.shape[:2] if source.dim() == 3 and source.shape[2] == self.width else source.shape
        is_known = source.dtype in _DTYPES if source.is_floating_point() else are_tokens(source, self.vocabularies[0])
        if not is_known or mask.shape != shape or mask.dtype != torch.bool:
            raise Unknown(f"a source {list(source.shape)} with a mask {list(mask.shape)}")
        lengths = mask.sum(1)
        starts = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
        states = torch.zeros(int(starts[-1]), native_decoder.padded_width(self.width))
        parts = min(torch.get_num_threads(), len(mask))
        search = native_decoder.Search.of(
            logits=ctypes.addressof(self.logits),
            is_broken=torch.zeros(parts, dtype=torch.bool),
            source_tokens=len(states),
            vocabulary=self.logits.outputs,
            layers=self.decoder.layer_count,
            sentences=len(mask),
            positions=self.positions,
            width=self.width,
            inner=self.inner,
            parts=parts,
            **fields,
        )
        if source.is_floating_point():
            states[:, : self.width] = source[mask]
        else:
            search.encoder = ctypes.addressof(self.encoder)
            search.keep(source=source[mask].int())
        search.keep(starts=starts, states=states)
        return search

    def search(self, source: Tensor, mask: Tensor, prompt: Tensor, options: "SearchOptions") -> Tensor:
        """Search for the tokens [sentences · returned, length].

        Args:
            source: tokens [sentences, source length], or states of the encoder [sentences, source length, width].
            mask: bool [sentences, source length], True = visible.
            prompt: first tokens of each row [sentences · beams, length].
            options: what is searched.

        Raises:
            Unknown: shapes do not fit each other, a number is infinite or NaN, or the proof fails.
            ValueError: a sentence would have more tokens than there are positions.
        """
        self.compare_with_pytorch(source[:1], mask[:1])
        return self._search(source, mask, prompt, options)

    def _search(
        self,
        source: Tensor,
        mask: Tensor,
        prompt: Tensor,
        options: "SearchOptions",
        shown_logits: Tensor | None = None,
    ) -> Tensor:
        """Search by compiled code without a proof; `shown_logits` [vocabulary] gets those behind the first prompt."""
        beams = options.beams
        returned = options.returned
        if prompt.dim() != 2 or len(prompt) != len(mask) * beams or not are_tokens(prompt, self.vocabularies[1]):
            raise Unknown(f"a prompt {list(prompt.shape)} for {len(mask)} sentences with {beams} beams")
        rows, prompt_len = prompt.shape
        longest = min(options.max_length, max(prompt_len, self.positions + 1))
        search = self._begin(
            source,
            mask,
            decoder=ctypes.addressof(self.decoder),
            beams=beams,
            returned=returned,
            prompt_len=prompt_len,
            longest=longest,
            max_length=options.max_length,
            is_beam_search=beams > 1,
            early_stopping=native_decoder.EARLY_STOPPING.index(options.early_stopping),
            is_renormalized=options.is_renormalized,
        )
        sentences = search.sentences
        tokens = torch.empty(longest, rows, dtype=torch.int32)
        tokens[:prompt_len] = prompt.t()
        results = torch.full((sentences * returned, longest), options.padding)
        results[:, :prompt_len] = prompt[::beams].repeat_interleave(returned, 0)
        result_lengths = torch.zeros(sentences * returned, dtype=torch.long)
        penalties = options.penalties(torch.arange(longest + 2, dtype=torch.float64))
        ends = torch.tensor(options.ends, dtype=torch.int32)
        search.end_count, search.last_penalty = len(ends), options.penalties(options.max_length - prompt_len)
        held_rules = [
            native_decoder.Rule.of(
                tokens=torch.tensor(ids, dtype=torch.int32),
                count=len(ids),
                first_length=first,
                last_length=last,
                is_forced=is_forced,
            )
            for ids, first, last, is_forced in options.rules
        ]
        rules = (native_decoder.Rule * len(held_rules))(*held_rules)
        search.rules, search.rule_count = ctypes.addressof(rules), len(rules)
        running = torch.full((sentences, beams), -1e9)
        running[:, 0] = 0  # At the start of a search all beams are equal, so only the first one counts.
        search.keep(
            source_cache=running.new_empty(self.decoder.layer_count, 2 * search._states.numel()),
            tokens=tokens,
            ancestors=torch.arange(rows, dtype=torch.int32)[None, :, None].expand(2, rows, longest),
            running_scores=running,
            finished_scores=torch.full_like(running, -1e9),
            finished_lengths=torch.zeros(rows, dtype=torch.int32),
            finished=torch.empty(rows, longest, dtype=torch.int32),
            results=results,
            result_lengths=result_lengths,
            ends=ends,
            penalties=penalties.float(),
            shown_logits=shown_logits,
        )
        is_done = torch.zeros(sentences, dtype=torch.bool)
        native_decoder.translate(search, is_done, prompt_len + FIRST_CAPACITY)
        _check_finite(search)
        if not is_done.all():
            raise ValueError(f"a sequence is too long: max_position_embeddings is {self.positions}")
        return results[:, : max(prompt_len, int(result_lengths.max()))]


class SearchOptions(NamedTuple):
    """What is searched."""

    beams: int  # A search with one beam is greedy.
    returned: int  # The search returns `returned` translations of each sentence.
    max_length: int  # A row has at most `max_length` tokens.
    padding: int  # The padding token fills a row after its last token.
    ends: list[int]  # A sentence ends with one of the tokens in `ends`.
    # Each rule of the search has its tokens, the lengths of rows (first, last + 1) that it is for, and whether it
    # forces or bans.
    rules: list[tuple[list[int], int, int, bool]]
    early_stopping: bool | str  # Early stopping is as in `generate`, but "never" only with a length penalty above 0.
    alpha: float
    offset: int
    is_renormalized: bool = False  # If `is_renormalized`, log P is taken over the tokens that no rule forbids.

    def penalties(self, length: int | Tensor) -> float | Tensor:
        """What log P of n new tokens is divided by: ((n + offset) / (1 + offset))^α."""
        return ((length + self.offset) / (1 + self.offset)) ** self.alpha


def are_tokens(tokens: Tensor, vocabulary: int) -> bool:
    """Whether there are some, all of them of the vocabulary."""
    return tokens.numel() > 0 and int(tokens.min()) >= 0 and int(tokens.max()) < vocabulary


def _check_finite(search: Any) -> None:
    """Leave infinity and NaN to PyTorch, which shows them."""
    if search._is_broken.any():
        raise Unknown("numbers that are infinite or NaN")


def _number_of(name: str, names: tuple[str, ...]) -> int:
    """Where C has a name."""
    if name not in names:
        raise Unknown(repr(name))
    return names.index(name)


def _check_fields(config: Any, known: str) -> None:
    """Look for fields that the compiled code would leave out."""
    usual = {field.name for field in dataclasses.fields(PreTrainedConfig)}
    for name in {field.name for field in dataclasses.fields(config)} - usual - set(known.split()):
        if name not in _NEUTRAL_FIELDS or getattr(config, name) != _NEUTRAL_FIELDS[name]:
            raise Unknown(f"a field {name} of {type(config).__name__}")


def _check_names(module: nn.Module, known: str) -> None:
    """Look for parameters, buffers, modules and attributes that the compiled code would leave out."""
    owners = [module._parameters, module._buffers, module._modules]
    # Attributes of a transformers model are not checked, because they change with its version.
    if not hasattr(module, "config"):
        owners.append({name: value for name, value in vars(module).items() if not name.startswith("_")})
    names = {name for owner in owners for name, value in owner.items() if value is not None} - {"training"}
    if type(module) is nn.Embedding:
        # `_look_at` checks an embedding's max_norm, so it is allowed.
        names -= {"max_norm", "norm_type", "scale_grad_by_freq", "sparse", "padding_idx"}
    unknown = names - set(known.split())
    if unknown:
        raise Unknown(f"{min(unknown)} of {type(module).__name__}")


def _inverse_lengths(weight: Tensor) -> Tensor:
    """1 / max(‖w‖₂, ε) of each row, or 1 at 0."""
    length = torch.linalg.vector_norm(weight.detach(), dim=1, dtype=torch.float32)
    return 1 / length.clamp_min(_UNIT_EPS).masked_fill(length == 0, 1.0)


def _fields_of(model: nn.Module) -> list[Any]:
    """Copy what the configurations hold, of the model and of each site."""
    configs = {id(config): config for config in (model.config, model.model.encoder.config, model.model.decoder.config)}
    sites = [
        site.attention
        for stack in (model.model.encoder, model.model.decoder)
        for layer in stack.layers
        for site in (layer.self_attn, getattr(layer, "cross_attn", layer.self_attn))
    ]
    return [(type(config), dict(vars(config))) for config in (*configs.values(), *sites)]


def _is_torch_changed() -> bool:
    """Whether tensors are made otherwise than here, or a mode changes functions, or every module is looked at."""
    # A default device is a mode, too.
    is_changed = torch.get_default_dtype() != torch.float32 or torch._C._len_torch_function_stack() > 0
    hooks = nn.modules.module
    return is_changed or bool(hooks._global_forward_hooks or hooks._global_forward_pre_hooks)


def _check_shapes(model: nn.Module) -> None:
    """Hold modules and tensors to the shapes that the configuration gives: compiled code reads as far as that says."""
    with torch.device("meta"):
        usual = dict(type(model)(copy.deepcopy(model.config)).named_modules())
    for name, module in model.named_modules():
        other = usual.get(name)
        if isinstance(module, PackedLinear):
            shapes = [(linear.out_features, linear.in_features) for linear in (module, other)]
        else:
            shapes = [
                {key: tensor.shape for _, key, tensor in _tensors_of(one)} if one is not None else None
                for one in (module, other)
            ]
        if shapes[0] != shapes[1]:
            raise Unknown(f"shapes of {name}")


def _tensors_of(module: nn.Module) -> list[tuple[dict, str, Tensor]]:
    owners = (module._parameters, module._buffers)
    return [(owner, name, tensor) for owner in owners for name, tensor in owner.items() if tensor is not None]


class _Seen(NamedTuple):
    """A module as it was read."""

    module: nn.Module
    kind: type
    children: dict[str, nn.Module | None]
    tensors: list[
        tuple[dict, str, Tensor, int, torch.Size, torch.dtype]
    ]  # Each parameter or buffer is noted with owner, name, tensor, address, shape and dtype.
    # Numbers and strings among a layer's attributes are its settings: if one has changed, the layer is read again.
    settings: list[tuple[str, Any]]
    size: int | None  # The size is the number of attributes, if that never grows.

    def is_same(self, has_same_memory: bool = True) -> bool:
        """Whether the module still computes that, on weights in the same memory if that is asked for."""
        module = self.module
        own = vars(self.module)
        is_other = type(module) is not self.kind or module._modules != self.children or module.training
        is_other |= len(self.tensors) != len(_tensors_of(module))
        if is_other or "forward" in own or (self.size is not None and len(own) != self.size):
            return False
        for hook in (*module._forward_hooks.values(), *module._forward_pre_hooks.values()):
            if getattr(hook, "__module__", None) != _COLLECTORS:
                return False
        return all(own.get(name) is value for name, value in self.settings) and all(
            owner.get(name) is tensor
            and (not has_same_memory or tensor.data_ptr() == address)
            and tensor.shape == shape
            and tensor.dtype == dtype
            and tensor.is_contiguous()
            and tensor.is_cpu
            and type(tensor) in (Tensor, nn.Parameter)
            for owner, name, tensor, address, shape, dtype in self.tensors
        )

    def structure(self) -> tuple:
        """What decides how the module is read; the memory of its weights does not."""
        return self.kind, self.settings, [(name, shape, dtype) for _, name, _, _, shape, dtype in self.tensors]


def _look_at(module: nn.Module, is_model: bool) -> _Seen:
    """What there is to see of a module; raises `Unknown` if it may compute something else than the library's class."""
    own = vars(module)
    kind = type(module)
    is_replaced = not is_model and any(callable(getattr(kind, name, None)) for name in own)
    is_known = kind in _OF_TORCH or kind.__module__.startswith(_OWN)
    owned = _tensors_of(module)
    is_known &= all(tensor.layout is torch.strided and tensor.dtype in _DTYPES for *_, tensor in owned)
    if is_replaced or not is_known or any(isinstance(value, Tensor) for value in own.values()):
        raise Unknown(kind.__name__)
    if isinstance(module, nn.Embedding) and module.max_norm is not None:
        raise Unknown("an embedding that shortens its rows")
    tensors = [(*one, one[-1].data_ptr(), one[-1].shape, one[-1].dtype) for one in owned]
    settings = [(name, value) for name, value in own.items() if type(value) in (bool, int, float, str, type(None))]
    settings = [(name, value) for name, value in settings if not (is_model or name.startswith("_"))]
    # Models and `PackedLinear` gain attributes in use, so their number is not compared.
    size = None if is_model or kind is PackedLinear else len(own)
    seen = _Seen(module, kind, dict(module._modules), tensors, settings, size)
    # The structures for C hold pointers, so the module is compared again: another thread may have given a weight other
    # memory meanwhile.
    if not seen.is_same(has_same_memory=False):
        raise Unknown(kind.__name__)
    return seen
