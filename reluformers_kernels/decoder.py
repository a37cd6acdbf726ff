# Copyright 2026 the reluformers authors
# SPDX-License-Identifier: Apache-2.0
"""Translation by one call of compiled code: the library's encoder–decoder models on a CPU.

A model is read into structures of pointers to its own weights, each time anew, so that nothing is old when they have
changed. What is not known here by name (a module of another class, a hook, another dtype) gives None, and goes on in
PyTorch.
"""

import copy
import ctypes
import importlib
import math
import threading
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import (
    EosTokenCriteria,
    ForcedBOSTokenLogitsProcessor,
    ForcedEOSTokenLogitsProcessor,
    GenerationConfig,
    LogitsProcessorList,
    MaxLengthCriteria,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    StoppingCriteriaList,
    SuppressTokensLogitsProcessor,
)

from .compiled import native
from .linear import PackedLinear
from .tensors import is_watched

try:
    native_decoder = native and importlib.import_module(f"{native.__name__}.decoder")
except ImportError:  # a repository of kernels has the attention alone
    native_decoder = None

FIRST_CAPACITY = 64  # tokens that there is room for at first, behind the prompt
_KEPT = "_translator"  # name of the attribute of a model that keeps its `Translator`
_KNOWN = "_known_search"  # likewise of the last call of `generate`
_PLAIN = (int, float, str, list, tuple, dict, type(None))  # a bool is an int
_OWN = "reluformers.modeling."
_OF_TORCH = (nn.Linear, nn.LayerNorm, nn.Embedding, nn.Identity, nn.ModuleList, PackedLinear)
_COLLECTORS = "transformers.utils.output_capturing"  # whose hooks look on
_NORMS = {"LayerNorm": "layer", "RMSNorm": "rms", "ScaleNorm": "unit_length"}
_NORMS |= {f"Gated{name}": _NORMS[name] for name in ("LayerNorm", "RMSNorm")}
_UNIT_EPS = 1e-12
_FEED_FORWARDS = ("relu", "gelu", "gelu_pytorch_tanh", "silu", "softmax", "sigmoid", "identity", "swish")


class Unknown(Exception):
    """What the compiled code does not know."""


class Translator:
    """A translation model as compiled code reads it: pointers to its weights, which stay its own.

    Args:
        model: of the library, in evaluation mode on a CPU.

    Raises:
        Unknown: the compiled code would compute something else.
    """

    def __init__(self, model: nn.Module):
        self.kept: list[Any] = []
        self.unit_linears: list[tuple[nn.Module, Tensor]] = []
        self.width, self.inner = model.config.d_model, 0
        self.seen = [_look_at(module) for module in model.modules()]
        self.fields = _fields_of(model)
        self.is_packed = isinstance(model.lm_head, PackedLinear)
        encoder, decoder = model.model.encoder, model.model.decoder
        self.encoder = self._stack(encoder, model.config.encoder_attention_heads)
        self.decoder = self._stack(decoder, model.config.decoder_attention_heads)
        self.logits = self._linear(model.lm_head)
        self.positions = model.config.max_position_embeddings
        self.vocabularies = encoder.embed_tokens.num_embeddings, decoder.embed_tokens.num_embeddings

    @classmethod
    def of(cls, model: nn.Module) -> "Translator | None":
        """The model as it is now, read anew where a module or the memory of a weight has changed; None if unknown."""
        is_off = native_decoder is None or model.training or torch.is_grad_enabled() or is_watched()
        if is_off or not native.is_available() or torch.is_autocast_enabled("cpu"):
            return None
        try:
            found = vars(model).get(_KEPT)
            if found is None or not found.is_current(model):
                found = vars(model)[_KEPT] = cls(model)
        except Unknown:
            return None
        for layer, factors in found.unit_linears:
            factors.copy_(_inverse_lengths(layer.weight))
        return found

    def is_current(self, model: nn.Module) -> bool:
        """Whether each module and the memory of each weight is what it was."""
        is_same = self.seen[0][0] is model and all(_is_as_seen(*seen) for seen in self.seen)
        return is_same and self.fields == _fields_of(model)

    def __reduce__(self):  # a copy of a model reads itself anew
        return type(None), ()

    def _keep(self, value: Any) -> Any:
        self.kept.append(value)
        return value

    def _number(self, number: float) -> Tensor:
        return self._keep(torch.tensor([number], dtype=torch.float32))

    def _linear(self, layer: nn.Module | None) -> Any:
        if layer is None:
            return native_decoder.Linear()
        shape = {"inputs": layer.in_features, "outputs": layer.out_features}
        if isinstance(layer, PackedLinear) != self.is_packed:
            raise Unknown("linear layers of two kinds")
        if self.is_packed:
            packed, scales, sums = layer.blocks
            return native_decoder.Linear.of(packed=packed, scales=scales, sums=sums, bias=layer.bias, **shape)
        factors = None
        if hasattr(layer, "unit_weight"):
            factors = _inverse_lengths(layer.weight)
            self.unit_linears.append((layer, factors))
        return native_decoder.Linear.of(weight=layer.weight, bias=layer.bias, factors=factors, **shape)

    def _norm(self, norm: nn.Module | None) -> Any:
        if norm is None or type(norm) is nn.Identity:
            return native_decoder.Norm()
        kind = _NORMS.get(type(norm).__name__)
        if kind is None:
            raise Unknown(type(norm).__name__)
        gain = "factor" if kind == "unit_length" else "gain"
        vectors = {gain: norm.weight, "bias": getattr(norm, "bias", None), "gate": getattr(norm, "gate", None)}
        return native_decoder.Norm.of(**vectors, eps=norm.eps, kind=native_decoder.NORMS.index(kind))

    @staticmethod
    def _unit_length(is_wanted: bool) -> Any:
        return native_decoder.Norm(eps=_UNIT_EPS, kind=native_decoder.NORMS.index("unit_length") if is_wanted else 0)

    def _attention(self, site: nn.Module) -> Any:
        config = site.attention
        if config.activation not in native_decoder.ACTIVATIONS:
            raise Unknown(config.activation)
        is_cosine = config.score == "cosine"
        return native_decoder.Attention.of(
            query=self._linear(site.q_proj),
            key=self._linear(site.k_proj),
            value=self._linear(site.v_proj),
            gate=self._linear(site.gate_proj),
            output=self._linear(site.out_proj),
            query_norm=self._norm(site.query_norm),
            key_norm=self._norm(site.key_norm),
            value_norm=self._unit_length(config.value_norm == "l2"),
            query_length=self._unit_length(is_cosine),
            key_length=self._unit_length(is_cosine),
            output_norm=self._norm(site.output_norm),
            scale=self._number(site.scaling) if site.scale is None else site.scale,
            thresholds=self._number(config.threshold) if site.threshold is None else site.threshold,
            exponent=self._number(config.length_exponent) if site.length_exponent is None else site.length_exponent,
            coefficient=config.length_coefficient,
            threshold_step=int(config.threshold_per_head),
            activation=native_decoder.ACTIVATIONS.index(config.activation),
            scale_form=native_decoder.LENGTH_FORMS.index(config.scale_form),
            threshold_form=native_decoder.LENGTH_FORMS.index(config.threshold_form),
            is_sum_one=config.normalizer == "sum",
            gate_form=native_decoder.GATES.index(config.output_gate),
            is_exclusive=config.exclusive_output,
        )

    def _layer(self, layer: nn.Module) -> Any:
        own, cross, mlp = layer.self_attn, getattr(layer, "cross_attn", None), layer.mlp
        if mlp.activation_name not in _FEED_FORWARDS:
            raise Unknown(mlp.activation_name)
        name = "swish" if mlp.activation_name == "silu" else mlp.activation_name
        beta = 1.0 if mlp.activation_name == "silu" else mlp.initial_swish_beta
        self.inner = max(self.inner, mlp.fc1.out_features)
        sites = {"own": self._attention(own), "own_norm": self._norm(layer.self_attn_norm)}
        if cross is not None:
            # of a query of another sequence no key is its own
            cross_site = self._attention(cross)
            cross_site.is_exclusive = False
            sites |= {"cross": cross_site, "cross_norm": self._norm(layer.cross_attn_norm)}
        return native_decoder.Layer.of(
            **sites,
            mlp_norm=self._norm(layer.mlp_norm),
            inner_norm=self._norm(mlp.norm),
            fc1=self._linear(mlp.fc1),
            fc_linear=self._linear(mlp.fc_linear),
            fc2=self._linear(mlp.fc2),
            beta=self._number(beta) if mlp.swish_beta is None else mlp.swish_beta,
            temperature=mlp.temperature,
            activation=native_decoder.ACTIVATIONS.index(name),
            has_rectified_values=mlp.has_rectified_values,
        )

    def _stack(self, stack: nn.Module, heads: int) -> Any:
        config, places = stack.config, stack.embed_positions
        layers = self._keep((native_decoder.Layer * len(stack.layers))(*map(self._layer, stack.layers)))
        table = places.weight if isinstance(places, nn.Embedding) else places.table
        return native_decoder.Stack.of(
            embeddings=stack.embed_tokens.weight,
            positions=table[config.position_offset :],
            bias=stack.embedding_bias,
            token_norm=self._unit_length(config.embedding_norm == "fix_norm"),
            sum_norm=self._norm(stack.embedding_norm),
            last_norm=self._norm(stack.norm),
            layers=ctypes.addressof(layers),
            layer_count=len(layers),
            heads=heads,
            factor=math.sqrt(config.d_model) if config.scale_embedding else 1.0,
            is_pre_norm=config.norm_position == "pre",
        )

    def search(
        self,
        source: Tensor | None,
        mask: Tensor | None,
        states: Tensor | None,
        prompt: Tensor,
        options: "SearchOptions",
    ) -> Tensor | None:
        """Tokens [sentences · returned, length], or None where a sentence would have more than there are positions.

        Args:
            source: tokens [sentences, source length], or None with states.
            mask: bool, True = visible, of the same shape; None = all are.
            states: of the encoder [sentences, source length, width]; None: they are made of the source.
            prompt: first tokens of each row [sentences · beams, length].
            options: what is searched.

        Raises:
            ValueError: a sentence would have more tokens than there are positions.
        """
        given = source if states is None else states
        sentences, (rows, prompt_len) = len(given), prompt.shape
        beams, returned = options.beams, options.returned
        longest = min(options.max_length, max(prompt_len, self.positions + 1))
        lengths = torch.full((sentences,), given.shape[1]) if mask is None else mask.sum(1)
        starts = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
        encoded = torch.zeros(int(starts[-1]), native_decoder.padded_width(self.width))
        search = native_decoder.Search(
            decoder=ctypes.addressof(self.decoder),
            logits=ctypes.addressof(self.logits),
            sentences=sentences,
            beams=beams,
            returned=returned,
            prompt_len=prompt_len,
            longest=longest,
            positions=self.positions,
            max_length=options.max_length,
            width=self.width,
            inner=self.inner,
            parts=min(torch.get_num_threads(), sentences),
            is_beam_search=options.is_beam_search,
            early_stopping=native_decoder.EARLY_STOPPING.index(options.early_stopping),
        )
        if states is None:
            search.encoder = ctypes.addressof(self.encoder)
            search.keep(source=(source.flatten() if mask is None else source[mask]).int())
        else:
            encoded[:, : self.width] = states.flatten(0, 1) if mask is None else states[mask]
        tokens = torch.empty(longest, rows, dtype=torch.int32)
        tokens[:prompt_len] = prompt.t()
        results = torch.full((sentences * returned, longest), options.padding)
        results[:, :prompt_len] = prompt[::beams].repeat_interleave(returned, 0)
        result_lengths = torch.zeros(sentences * returned, dtype=torch.long)
        penalties = options.penalties(torch.arange(longest + 2, dtype=torch.float64))
        ends = torch.tensor(options.ends, dtype=torch.int32)
        search.end_count, search.last_penalty = len(ends), options.penalties(options.max_length - prompt_len)
        rules = (native_decoder.Rule * len(options.rules))()
        for rule, (rule_tokens, first, last, is_forced) in zip(rules, options.rules, strict=True):
            rule_tokens = self._keep(torch.tensor(rule_tokens, dtype=torch.int32))
            rule.tokens, rule.count, rule.is_forced = rule_tokens.data_ptr(), len(rule_tokens), is_forced
            rule.first_length, rule.last_length = first, last
        search.rules, search.rule_count = ctypes.addressof(rules), len(rules)
        running = torch.full((sentences, beams), -1e9)
        running[:, 0] = 0  # at first all beams are the same
        search.keep(
            starts=starts,
            states=encoded,
            source_cache=encoded.new_empty(self.decoder.layer_count, 2 * encoded.numel()),
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
        )
        is_done = torch.zeros(sentences, dtype=torch.bool)
        native_decoder.translate(search, is_done, prompt_len + FIRST_CAPACITY)
        if not is_done.all():
            raise ValueError(f"a sequence is too long: max_position_embeddings is {self.positions}")
        return results[:, : max(prompt_len, int(result_lengths.max()))]


class SearchOptions(NamedTuple):
    """What is searched, greedily or with beams.

    Args:
        beams: of a sentence.
        returned: hypotheses of a sentence.
        max_length: most tokens of a row.
        is_beam_search: or else greedy.
        padding: behind the last token.
        ends: tokens that end a sentence.
        rules: tokens, the first and the last length, exclusive, of rows that they are for, and whether they are forced
            or must not come.
        early_stopping: as in `generate`, but never `"never"` without a positive penalty.
        alpha, offset: log P of n new tokens is divided by ((n + offset) / (1 + offset))^α.
    """

    beams: int
    returned: int
    max_length: int
    is_beam_search: bool
    padding: int
    ends: list[int]
    rules: list[tuple[list[int], int, int, bool]]
    early_stopping: bool | str
    alpha: float
    offset: int

    def penalties(self, length: int | Tensor) -> float | Tensor:
        """What log P of so many new tokens is divided by."""
        return ((length + self.offset) / (1 + self.offset)) ** self.alpha


def _inverse_lengths(weight: Tensor) -> Tensor:
    """1 / max(‖w‖₂, ε) of each row, or 1 at 0."""
    length = torch.linalg.vector_norm(weight, dim=1)
    return 1 / length.clamp_min(_UNIT_EPS).masked_fill(length == 0, 1.0)


def _fields_of(model: nn.Module) -> list[Any]:
    """What the modules read of configurations when they compute."""
    config = model.config
    names = ("embedding_norm", "scale_embedding", "position_offset", "max_position_embeddings")
    sites = [
        dict(vars(site.attention))
        for stack in (model.model.encoder, model.model.decoder)
        for layer in stack.layers
        for site in (layer.self_attn, getattr(layer, "cross_attn", layer.self_attn))
    ]
    return [*(getattr(config, name) for name in names), *sites]


def _look_at(module: nn.Module) -> tuple[nn.Module, type, dict, list[tuple[dict, str, Tensor, int]]]:
    """A module's class, children and tensors, and where these lie.

    Raises:
        Unknown: it may compute something else than the library's class.
    """
    if not (type(module) in _OF_TORCH or type(module).__module__.startswith(_OWN)):
        raise Unknown(type(module).__name__)
    owners = (module._parameters, module._buffers)
    tensors = [(owner, name, tensor) for owner in owners for name, tensor in owner.items() if tensor is not None]
    tensors = [(*found, found[-1].data_ptr()) for found in tensors]
    seen = module, type(module), dict(module._modules), tensors
    if not _is_as_seen(*seen):
        raise Unknown(type(module).__name__)
    return seen


def _is_as_seen(module: nn.Module, kind: type, children: dict, tensors: list[tuple[dict, str, Tensor, int]]) -> bool:
    if type(module) is not kind or module._modules != children or module.training or "forward" in module.__dict__:
        return False
    for hook in (*module._forward_hooks.values(), *module._forward_pre_hooks.values()):
        if getattr(hook, "__module__", None) != _COLLECTORS:
            return False
    return all(
        owner.get(name) is tensor
        and tensor.data_ptr() == place
        and tensor.dtype == torch.float32
        and tensor.is_contiguous()
        and tensor.is_cpu
        and type(tensor) in (Tensor, nn.Parameter)
        for owner, name, tensor, place in tensors
    )


def search_compiled(
    model: nn.Module,
    input_ids: Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    model_kwargs: dict,
) -> Tensor | None:
    """What a search of `generate` gives, of which the arguments are; None if the compiled code does not know it."""
    options = _options_of(model, logits_processor, stopping_criteria, generation_config)
    translator = None if options is None else Translator.of(model)
    if translator is None:
        return None
    states, mask = model_kwargs["encoder_outputs"][0][:: options.beams], model_kwargs.get("attention_mask")
    if mask is not None:
        if mask.dim() != 2 or mask.shape[1] != states.shape[1]:
            return None
        mask = mask[:: options.beams].bool()
    if states.dtype != torch.float32 or not _fits(input_ids, translator.vocabularies[1]):
        return None
    _ASKING.search = (options, input_ids[0].tolist()) if (input_ids == input_ids[0]).all() else None
    return translator.search(None, mask, states, input_ids, options)


_ASKING = threading.local()  # `search`: what the last `generate` of a thread has come to


class KnownSearch:
    """A call of `generate` that is prepared already, as one in the same words came to this search before.

    What transformers prepares takes as long as several steps. All that it looks at is compared: options, and
    configurations of generation.

    Args:
        model: that generates.
        inputs, generation_config, others: arguments of `generate`.
    """

    def __init__(self, model: nn.Module, inputs: Tensor | None, generation_config: Any, others: dict[str, Any]):
        self.model, self.key = model, None
        others = dict(others)
        mask, ids = others.pop("attention_mask", None), others.pop("input_ids", inputs)
        configs = [dict(vars(config)) for config in (generation_config, model.generation_config) if config is not None]
        values = [value for part in (others, *configs) for value in part.values()]
        is_given = isinstance(ids, Tensor) and isinstance(mask, Tensor) and ids.shape == mask.shape and ids.dim() == 2
        if is_given and ids.is_cpu and ids.dtype == torch.long and all(isinstance(value, _PLAIN) for value in values):
            self.key = others, configs, vars(model).get("_update_finished_beams")
        self.source, self.mask = ids, mask
        _ASKING.search = None

    def run(self) -> Tensor | None:
        """Tokens, or None if no such call was before, or something else has changed."""
        known = vars(self.model).get(_KNOWN)
        if self.key is None or known is None or known[0] != self.key:
            return None
        with torch.no_grad():
            translator, (options, prompt) = Translator.of(self.model), known[1]
            if translator is None or self.source.shape[1] > translator.positions:
                return None
            if not _fits(self.source, translator.vocabularies[0]):
                return None
            first = torch.tensor([prompt]).expand(len(self.source) * options.beams, -1)
            return translator.search(self.source, self.mask.bool(), None, first, options)

    def remember(self) -> None:
        """Keep what the call has come to, if it was a search of compiled code."""
        if self.key is not None and _ASKING.search is not None:
            vars(self.model)[_KNOWN] = copy.deepcopy(self.key[:2]) + self.key[2:], _ASKING.search


def _fits(tokens: Tensor, vocabulary: int) -> bool:
    return tokens.numel() > 0 and int(tokens.min()) >= 0 and int(tokens.max()) < vocabulary


def _options_of(
    model: nn.Module,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    config: GenerationConfig,
) -> SearchOptions | None:
    """The same for compiled code, or None."""
    beams, rules = config.num_beams, []
    forever = 2**31
    for processor in logits_processor:
        if type(processor) is ForcedBOSTokenLogitsProcessor:
            rules.append(([processor.bos_token_id], 1, 2, True))
        elif type(processor) is ForcedEOSTokenLogitsProcessor:
            length = processor.max_length
            rules.append((processor.eos_token_id.tolist(), length - 1, length, True))
        elif type(processor) is MinLengthLogitsProcessor:
            rules.append((processor.eos_token_id.tolist(), 0, processor.min_length, False))
        elif type(processor) is MinNewTokensLengthLogitsProcessor:
            length = processor.prompt_length_to_skip + processor.min_new_tokens
            rules.append((processor.eos_token_id.tolist(), 0, length, False))
        elif type(processor) is SuppressTokensLogitsProcessor:
            rules.append((processor.suppress_tokens.tolist(), 0, forever, False))
        else:
            return None
    # where one forbids what another forces, their order counts
    banned = {token for tokens, *_, is_forced in rules if not is_forced for token in tokens}
    if any(is_forced and banned.intersection(tokens) for tokens, *_, is_forced in rules):
        return None
    ends, max_length = [], config.max_length
    for criterion in stopping_criteria:
        if type(criterion) is EosTokenCriteria:
            ends += criterion.eos_token_id.tolist()
        elif type(criterion) is MaxLengthCriteria:
            max_length = min(max_length, criterion.max_length)
    # a search that divides by another penalty says by which
    finishing = vars(model).get("_update_finished_beams")
    offset = 0 if finishing is None else getattr(finishing, "penalty_offset", None)
    if offset is None or ("_check_early_stop_heuristic" in vars(model)) != (finishing is not None):
        return None
    padding = config._pad_token_tensor
    if beams > 1:
        end_tokens = config._eos_token_tensor
        padding = padding or end_tokens[0] if end_tokens is not None else -1  # as there: 0 is no padding
    early_stopping = config.early_stopping
    if early_stopping == "never" and config.length_penalty <= 0:
        early_stopping = False
    return SearchOptions(
        beams,
        config.num_return_sequences if beams > 1 else 1,
        max_length,
        beams > 1,
        0 if padding is None else int(padding),
        ends,
        rules,
        early_stopping,
        config.length_penalty,
        offset,
    )
