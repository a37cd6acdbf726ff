# Copyright 2026 the reluformers authors
# SPDX-License-Identifier: Apache-2.0
"""Translation by one call of compiled code: the library's encoder–decoder models on a CPU.

A model is read into structures of pointers to its own weights, each time anew, so that nothing is old when they have
changed. What is not known here by name (a module of another class, a hook, float16) gives None, and goes on in
PyTorch. Weights of bfloat16 stay as they are, and all else is float32, where PyTorch rounds after each operator.
"""

import copy
import ctypes
import importlib
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .compiled import native
from .linear import PackedLinear
from .tensors import is_watched

try:
    native_decoder = native and importlib.import_module(f"{native.__name__}.decoder")
except ImportError:  # a repository of kernels has the attention alone
    native_decoder = None

FIRST_CAPACITY = 64  # tokens that there is room for at first, behind the prompt
_KEPT = "_translator"  # name of the attribute of a model that keeps its `Translator`
_OWN = "reluformers.modeling."
_OF_TORCH = (nn.Linear, nn.LayerNorm, nn.Embedding, nn.Identity, nn.ModuleList, PackedLinear)
_COLLECTORS = "transformers.utils.output_capturing"  # whose hooks look on
_NORMS = {"LayerNorm": "layer", "RMSNorm": "rms", "ScaleNorm": "unit_length"}
_NORMS |= {f"Gated{name}": _NORMS[name] for name in ("LayerNorm", "RMSNorm")}
_BACKENDS = ("eager", "fused")
_UNIT_EPS = 1e-12
_DTYPES = (torch.float32, torch.bfloat16)


class Unknown(Exception):
    """What the compiled code does not know."""


class Translator:
    """A translation model as compiled code reads it: pointers to its weights, which stay its own.

    Raises `Unknown` where the compiled code would compute something else.
    """

    def __init__(self, model: nn.Module):
        if model.config._attn_implementation not in _BACKENDS:
            raise Unknown(model.config._attn_implementation)
        self.known: tuple | None = None  # what the last `Call` of search.py has come to
        self.kept: list[Any] = []
        self.derived: list[tuple[Callable[[], Tensor], Tensor]] = []
        self.width, self.inner = model.config.d_model, 0
        self.seen = [_look_at(module, module is model) for module in model.modules()]
        _check_shapes(model)
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
        if is_off or not native.is_available() or torch.is_autocast_enabled("cpu") or _is_torch_changed():
            return None
        try:
            found = vars(model).get(_KEPT)
            if found is None or not found.is_current(model):
                found = vars(model)[_KEPT] = cls(model)
        except Unknown:
            vars(model).pop(_KEPT, None)  # it would keep weights alive
            return None
        for compute, numbers in found.derived:
            numbers.copy_(compute())
        return found

    def is_current(self, model: nn.Module) -> bool:
        """Whether each module and the memory of each weight is what it was."""
        is_same = self.seen[0].module is model and all(seen.is_same() for seen in self.seen)
        return is_same and self.fields == _fields_of(model)

    def __reduce__(self):  # a copy of a model reads itself anew
        return type(None), ()

    def _keep(self, value: Any) -> Any:
        self.kept.append(value)
        return value

    def _derive(self, compute: Callable[[], Tensor]) -> Tensor:
        """Numbers in float32 that are computed anew for each call."""
        with torch.inference_mode(False):  # the next call may be outside of it, and write there
            numbers = compute().detach().float().clone()
        self.derived.append((compute, numbers))
        return numbers

    def _vector(self, tensor: Tensor | None) -> Tensor | None:
        return tensor if tensor is None or tensor.dtype == torch.float32 else self._derive(lambda: tensor)

    def _vector_or(self, tensor: Tensor | None, number: float) -> Tensor:
        return self._keep(torch.tensor([number])) if tensor is None else self._vector(tensor)

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
            factors = self._derive(lambda: _inverse_lengths(layer.weight))
        vectors = {"bias": self._vector(layer.bias), "factors": factors}
        return native_decoder.Linear.of(
            weight=layer.weight, is_bfloat16=layer.weight.dtype == torch.bfloat16, **vectors, **shape
        )

    def _norm(self, norm: nn.Module | None) -> Any:
        if norm is None or type(norm) is nn.Identity:
            return native_decoder.Norm()
        kind = _NORMS[type(norm).__name__]
        gain = "factor" if kind == "unit_length" else "gain"
        vectors = {gain: norm.weight, "bias": getattr(norm, "bias", None), "gate": getattr(norm, "gate", None)}
        vectors = {name: self._vector(vector) for name, vector in vectors.items()}
        return native_decoder.Norm.of(**vectors, eps=norm.eps, kind=native_decoder.NORMS.index(kind))

    @staticmethod
    def _unit_length(is_wanted: bool) -> Any:
        return native_decoder.Norm(eps=_UNIT_EPS, kind=native_decoder.NORMS.index("unit_length") if is_wanted else 0)

    def _attention(self, site: nn.Module) -> Any:
        config = site.attention
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
            scale=self._vector_or(site.scale, site.scaling),
            thresholds=self._vector_or(site.threshold, config.threshold),
            exponent=self._vector_or(site.length_exponent, config.length_exponent),
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
            beta=self._vector_or(mlp.swish_beta, beta),
            temperature=mlp.temperature,
            activation=native_decoder.ACTIVATIONS.index(name),
            has_rectified_values=mlp.has_rectified_values,
        )

    def _stack(self, stack: nn.Module, heads: int) -> Any:
        config, places = stack.config, stack.embed_positions
        is_pre_norm = config.norm_position == "pre"
        if any(layer.is_pre_norm != is_pre_norm for layer in stack.layers):
            raise Unknown("a configuration that has changed")
        layers = self._keep((native_decoder.Layer * len(stack.layers))(*map(self._layer, stack.layers)))
        table = places.weight if isinstance(places, nn.Embedding) else places.table
        return native_decoder.Stack.of(
            embeddings=stack.embed_tokens.weight,
            is_bfloat16=stack.embed_tokens.weight.dtype == torch.bfloat16,
            positions=self._vector(table[config.position_offset :]),
            bias=self._vector(stack.embedding_bias),
            token_norm=self._unit_length(config.embedding_norm == "fix_norm"),
            sum_norm=self._norm(stack.embedding_norm),
            last_norm=self._norm(stack.norm),
            layers=ctypes.addressof(layers),
            layer_count=len(layers),
            heads=heads,
            factor=math.sqrt(config.d_model) if config.scale_embedding else 1.0,
            is_pre_norm=is_pre_norm,
        )

    def encode(self, source: Tensor, mask: Tensor) -> Tensor:
        """Compute states of the encoder [*source.shape, width] in float32, with zeros where the mask is False."""
        no_layers = native_decoder.Stack()
        search = self._begin(source, mask, decoder=ctypes.addressof(no_layers), beams=1, longest=1)
        search.keep(lengths=torch.zeros(search.parts, dtype=torch.long), is_done=mask.new_ones(len(source)))
        search.run("translate", search.parts)
        states = torch.zeros(*source.shape, self.width)
        states[mask] = search._states[:, : self.width]
        return states

    def _begin(self, source: Tensor, mask: Tensor, **fields: int) -> Any:
        """Fill what the encoder reads and writes, for tokens or its states."""
        lengths = mask.sum(1)
        starts = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
        states = torch.zeros(int(starts[-1]), native_decoder.padded_width(self.width))
        search = native_decoder.Search(
            logits=ctypes.addressof(self.logits),
            sentences=len(mask),
            positions=self.positions,
            width=self.width,
            inner=self.inner,
            parts=min(torch.get_num_threads(), len(mask)),
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
            ValueError: a sentence would have more tokens than there are positions.
        """
        beams, returned, (rows, prompt_len) = options.beams, options.returned, prompt.shape
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
        rules = (native_decoder.Rule * len(options.rules))()
        rule_tokens = [torch.tensor(tokens_of_rule, dtype=torch.int32) for tokens_of_rule, *_ in options.rules]
        for rule, ids, (_, first, last, is_forced) in zip(rules, rule_tokens, options.rules, strict=True):
            rule.tokens, rule.count, rule.is_forced = ids.data_ptr(), len(ids), is_forced
            rule.first_length, rule.last_length = first, last
        search.rules, search.rule_count = ctypes.addressof(rules), len(rules)
        running = torch.full((sentences, beams), -1e9)
        running[:, 0] = 0  # at first all beams are the same
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
        )
        is_done = torch.zeros(sentences, dtype=torch.bool)
        native_decoder.translate(search, is_done, prompt_len + FIRST_CAPACITY)
        if not is_done.all():
            raise ValueError(f"a sequence is too long: max_position_embeddings is {self.positions}")
        return results[:, : max(prompt_len, int(result_lengths.max()))]


class SearchOptions(NamedTuple):
    """What is searched."""

    beams: int  # of a sentence; 1 is greedy
    returned: int  # hypotheses of a sentence
    max_length: int  # most tokens of a row
    padding: int  # behind the last token
    ends: list[int]  # tokens that end a sentence
    # tokens, first and last length (exclusive) of the rows that they are for, and whether they are forced or banned
    rules: list[tuple[list[int], int, int, bool]]
    early_stopping: bool | str  # as in `generate`, but never "never" without a positive penalty
    alpha: float
    offset: int

    def penalties(self, length: int | Tensor) -> float | Tensor:
        """What log P of n new tokens is divided by: ((n + offset) / (1 + offset))^α."""
        return ((length + self.offset) / (1 + self.offset)) ** self.alpha


def _inverse_lengths(weight: Tensor) -> Tensor:
    """1 / max(‖w‖₂, ε) of each row, or 1 at 0."""
    length = torch.linalg.vector_norm(weight.detach(), dim=1, dtype=torch.float32)
    return 1 / length.clamp_min(_UNIT_EPS).masked_fill(length == 0, 1.0)


def _fields_of(model: nn.Module) -> list[Any]:
    """What the modules read of configurations when they compute."""
    config = model.config
    names = ("embedding_norm", "scale_embedding", "position_offset", "max_position_embeddings", "norm_position")
    names += ("_attn_implementation", "encoder_attention_heads", "decoder_attention_heads")
    sites = [
        dict(vars(site.attention))
        for stack in (model.model.encoder, model.model.decoder)
        for layer in stack.layers
        for site in (layer.self_attn, getattr(layer, "cross_attn", layer.self_attn))
    ]
    return [*(getattr(config, name) for name in names), *sites]


def _is_torch_changed() -> bool:
    """Whether tensors are made elsewhere or otherwise than here, or every module is looked at."""
    is_moved = torch.get_default_dtype() != torch.float32 or torch.get_default_device().type != "cpu"
    hooks = nn.modules.module
    return is_moved or bool(hooks._global_forward_hooks or hooks._global_forward_pre_hooks)


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
    tensors: list[tuple[dict, str, Tensor, int, torch.Size, torch.dtype]]  # owner, name, tensor, place, shape, dtype
    settings: list[tuple[str, Any]]  # numbers and names among its attributes
    size: int | None  # how many attributes it has, if it gains none

    def is_same(self) -> bool:
        """Whether the module still computes that, on weights at the same place."""
        module, own = self.module, vars(self.module)
        is_other = type(module) is not self.kind or module._modules != self.children or module.training
        if is_other or "forward" in own or (self.size is not None and len(own) != self.size):
            return False
        for hook in (*module._forward_hooks.values(), *module._forward_pre_hooks.values()):
            if getattr(hook, "__module__", None) != _COLLECTORS:
                return False
        return all(own.get(name) is value for name, value in self.settings) and all(
            owner.get(name) is tensor
            and tensor.data_ptr() == place
            and tensor.shape == shape
            and tensor.dtype == dtype
            and tensor.is_contiguous()
            and tensor.is_cpu
            and type(tensor) in (Tensor, nn.Parameter)
            for owner, name, tensor, place, shape, dtype in self.tensors
        )


def _look_at(module: nn.Module, is_model: bool) -> _Seen:
    """What there is to see of a module; raises `Unknown` if it may compute something else than the library's class."""
    own, kind = vars(module), type(module)
    is_replaced = not is_model and any(callable(getattr(kind, name, None)) for name in own)
    is_known = kind in _OF_TORCH or kind.__module__.startswith(_OWN)
    found = _tensors_of(module)
    is_known &= all(tensor.layout is torch.strided and tensor.dtype in _DTYPES for *_, tensor in found)
    if is_replaced or not is_known or any(isinstance(value, Tensor) for value in own.values()):
        raise Unknown(kind.__name__)
    if isinstance(module, nn.Embedding) and module.max_norm is not None:
        raise Unknown("an embedding that shortens its rows")
    tensors = [(*one, one[-1].data_ptr(), one[-1].shape, one[-1].dtype) for one in found]
    settings = [(name, value) for name, value in own.items() if type(value) in (bool, int, float, str, type(None))]
    settings = [(name, value) for name, value in settings if not (is_model or name.startswith("_"))]
    size = None if is_model or kind is PackedLinear else len(own)  # both gain attributes
    seen = _Seen(module, kind, dict(module._modules), tensors, settings, size)
    if not seen.is_same():
        raise Unknown(kind.__name__)
    return seen
