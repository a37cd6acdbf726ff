"""A pass over batches that shows the attention weights of every site and layer, of our models or any of transformers.

Weights come from the outputs of encoder–decoders and vision models; those of a pooling query, which outputs do not
hold, from a hook.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from reluformers.data.batching import IGNORED_LABEL
from reluformers.modeling.pipeline_translation import returning_weights

# For each site, the fields of a model's output that may hold its weights.
_FIELDS = {
    "encoder": ("encoder_attentions", "attentions"),
    "decoder": ("decoder_attentions",),
    "cross": ("cross_attentions",),
}
_TEXT_SITES = ("encoder", "decoder", "cross")
_INPUTS = ("pixel_values", "input_ids", "attention_mask", "labels")

Batch = Mapping[str, Tensor]


@dataclass
class Rows:
    """The attention of one batch at one site and layer.

    Args:
        weights: float32 [batch, heads, query_len, key_len], 0 where the key is not visible.
        visible: bool [batch, 1, query_len, key_len], True = real query and visible key.
        real: bool [batch, 1, query_len], True = real query.
    """

    weights: Tensor
    visible: Tensor
    real: Tensor

    @classmethod
    def of(cls, weights: Tensor, visible: Tensor, real: Tensor, **further: Any) -> "Rows":
        """Rows of weights of any dtype, with masks [batch, query_len, key_len] and [batch, query_len]."""
        visible = visible.unsqueeze(1)
        real = real.unsqueeze(1)
        # In float32, as not every device has float64.
        return cls(weights.float().masked_fill(~visible, 0.0), visible, real, **further)

    @cached_property
    def key_counts(self) -> Tensor:
        """n_i [batch, 1, query_len]."""
        return self.visible.sum(-1)

    @cached_property
    def row_sums(self) -> Tensor:
        """Σ_i = Σ_j s_ij [batch, heads, query_len]."""
        return self.weights.sum(-1)

    @cached_property
    def null(self) -> Tensor:
        """Real rows of zeros alone, bool [batch, heads, query_len]."""
        return self.real & (self.weights == 0).all(-1)

    @cached_property
    def spread(self) -> Tensor:
        """Real rows with Σ_i > 0 and no negative weight, bool [batch, heads, query_len]."""
        return self.real & (self.row_sums > 0) & (self.weights >= 0).all(-1)

    @cached_property
    def shares(self) -> Tensor:
        """p_ij = s_ij / Σ_i of the rows that are `spread`, else 0 [batch, heads, query_len, key_len]."""
        shares = self.weights / self.row_sums.masked_fill(~self.spread, 1.0).unsqueeze(-1)
        return shares.masked_fill(~self.spread.unsqueeze(-1), 0.0)

    @cached_property
    def entropies(self) -> Tensor:
        """H(p_i) = −Σ_j p_ij log p_ij in nats, 0 of the rows that are not `spread` [batch, heads, query_len]."""
        return torch.special.entr(self.shares).sum(-1)


Attention = dict[str, list[Rows]]  # "encoder", "decoder", … → rows of each layer


@contextmanager
def observing(model: PreTrainedModel, sites: Sequence[str] = _TEXT_SITES) -> Iterator[Callable[[Batch], Attention]]:
    """Put the model in evaluation mode, with the attention that returns weights, and back.

    Args:
        model: an encoder–decoder or a vision model.
        sites: of an encoder–decoder, those that are looked at.

    Yields:
        Function that runs one batch: a dict with `input_ids` [batch, source_len], `labels` [batch, target_len] (−100 =
        padding) and, where there is padding, `attention_mask` [batch, source_len] (1 = real), for teacher forcing; or
        with `pixel_values` [batch, channels, height, width]. It raises ValueError where the model returns no weights.
    """
    pooled: dict[nn.Module, Tensor] = {}
    with ExitStack() as stack:
        stack.callback(model.train, model.training)
        model.eval()
        model = returning_weights(model)
        for module in attention_modules(model).get("pooling", []):
            hook = module.register_forward_hook(lambda module, _, outputs: pooled.update({module: outputs[1]}))
            stack.callback(hook.remove)
        # no_grad, as weights that FSDP gathers in inference mode fail outside of it.
        stack.enter_context(torch.no_grad())
        yield partial(_observe, model, sites, pooled)


def attention_modules(model: nn.Module) -> dict[str, list[nn.Module]]:
    """Site → the attention module of each of its layers, as far as they have `q_proj`, `k_proj` and `v_proj`."""
    sites: dict[str, list[nn.Module]] = {}
    for name, module in model.named_modules():
        if all(hasattr(module, projection) for projection in ("q_proj", "k_proj", "v_proj")):
            site = "pooling" if "pooler" in name else "encoder"
            if "decoder" in name.split("."):
                site = "cross" if re.search(r"(encoder|cross)_attn", name) else "decoder"
            sites.setdefault(site, []).append(module)
    return sites


def _observe(model: PreTrainedModel, sites: Sequence[str], pooled: dict[nn.Module, Tensor], batch: Batch) -> Attention:
    """Run a model on one batch, and collect its attention rows."""
    inputs = {name: batch[name].to(model.device) for name in _INPUTS if name in batch}
    options: dict[str, Any] = {"output_attentions": True, "return_dict": True}
    if "pixel_values" in inputs:  # Images have no padding.
        outputs = model(pixel_values=inputs["pixel_values"], **options)
        layers = {"encoder": layer_weights(model, outputs, "encoder"), "pooling": list(pooled.values())}
        layers = {site: matrices for site, matrices in layers.items() if matrices}
        pooled.clear()
        visible = {site: torch.ones_like(matrices[0][:, 0], dtype=torch.bool) for site, matrices in layers.items()}
        real = {site: pairs[..., 0] for site, pairs in visible.items()}
    else:
        outputs = model(**inputs, use_cache=False, **options)
        source = inputs.get("attention_mask", torch.ones_like(inputs["input_ids"])).bool()  # [batch, source_len]
        target = inputs["labels"] != IGNORED_LABEL  # [batch, target_len]
        past = torch.ones(2 * target.shape[1:], dtype=torch.bool, device=target.device).tril()
        real = {"encoder": source, "decoder": target, "cross": target}
        visible = {
            "encoder": source.unsqueeze(2) & source.unsqueeze(1),
            # Each token before a scored one is read, whether it is scored or not.
            "decoder": target.unsqueeze(2) & past,
            "cross": target.unsqueeze(2) & source.unsqueeze(1),
        }
        layers = {site: layer_weights(model, outputs, site) for site in sites}
    return {
        site: [Rows.of(weights, visible[site], real[site]) for weights in matrices]
        for site, matrices in layers.items()
    }


def layer_weights(model: PreTrainedModel, outputs: Any, site: str) -> Sequence[Tensor]:
    """Attention weights of each layer of a site, out of a model's outputs; a ValueError if it returned none."""
    layers = next((layers for name in _FIELDS[site] if (layers := getattr(outputs, name, None))), None)
    if not layers or any(weights is None for weights in layers):
        raise ValueError(f"{type(model).__name__} returned no {site} attentions")
    return layers
