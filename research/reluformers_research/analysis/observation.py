"""One pass over a data set that shows a model's attention and feed-forward networks, batch by batch, to statistics.

Hooks take what the pass of `reluformers.evaluation.observation` does not show, from modules with the names that
transformers gives them (`v_proj`; `fc2`, alone or in `mlp`). What has other names is not observed.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any

from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from reluformers.evaluation import observation
from reluformers.evaluation.observation import Batch, attention_modules
from reluformers.modeling.pipeline_translation import returning_weights


@dataclass
class Rows(observation.Rows):
    """The attention of one batch at one site and layer, with what statistics ask for beside it.

    Args:
        correct: bool [batch, 1, query_len]: whether the most probable token at this place is the reference's, or the
            class of the image the right one; None where there are no labels, and in the encoder of texts.
        values: what the weights multiply, [batch, heads, key_len, head_dim].
    """

    correct: Tensor | None = None
    values: Tensor | None = None


@dataclass
class FeedForwardRows:
    """The feed-forward network of one layer on the real tokens of one batch.

    Args:
        inner: what the values are multiplied by, φ(x·W1ᵀ) or its gated form [tokens, slots].
        output: the branch's output [tokens, width].
        residual: what it is added to [tokens, width].
    """

    inner: Tensor
    output: Tensor
    residual: Tensor


@dataclass
class Observed:
    """What a model did with one batch: by site, of each layer, from the first.

    Args:
        inputs: the batch.
        attention: "encoder", "decoder", "cross", "pooling", as far as the model has them → rows.
        feed_forward: "encoder", "decoder" → rows; empty where the modules are not found.
    """

    inputs: Batch
    attention: dict[str, list[Rows]]
    feed_forward: dict[str, list[FeedForwardRows]] = field(default_factory=dict)


class Statistic(ABC):
    """What is measured in a pass: sees every batch once, keeps little, and says at the end what it has found.

    `needs` names what it asks for beside weights and masks: "values", "feed_forward".
    """

    needs: frozenset[str] = frozenset()

    @abstractmethod
    def update(self, observed: Observed) -> None:
        """Take in one batch."""

    @abstractmethod
    def result(self) -> dict[str, Any]:
        """Name → what was measured; names of what could not be are missing."""


def analyse(
    model: PreTrainedModel,
    batches: Iterable[Batch],
    statistics: Sequence[Statistic],
    *,
    shuffled: Sequence[Statistic] = (),
) -> dict[str, Any]:
    """Measure statistics in one pass over a data set, of translation models with teacher forcing.

    Args:
        model: an encoder–decoder or a vision model; it is evaluated with the eager attention, which returns weights,
            and left in the mode it came in.
        batches: dicts with `input_ids` [batch, source_len], `labels` [batch, target_len] (−100 = padding) and, where
            there is padding, `attention_mask` [batch, source_len] (1 = real); or with `pixel_values` [batch, channels,
            height, width] and perhaps `labels` [batch]. Memory is bounded by the largest of them.
        statistics: see every batch.
        shuffled: see every batch of texts with the targets moved by one row, so that none belongs to its source (ReLA
            §5.2 shuffles them over the whole set; here they are about as long as the true ones). Batches of one row
            are left out.

    Returns:
        What the statistics have found by name; those of `shuffled` with ".shuffled" behind it.

    Raises:
        ValueError: there are no batches, a batch lacks its inputs, or the model returns no attention weights.
    """
    is_empty = True
    needs = frozenset().union(*(statistic.needs for statistic in (*statistics, *shuffled)))
    with observing(model, needs) as observe:
        for batch in batches:
            is_empty = False
            observed = observe(batch)
            for statistic in statistics:
                statistic.update(observed)
            if shuffled and "pixel_values" not in batch and len(batch["labels"]) > 1:
                observed = observe({**batch, "labels": batch["labels"].roll(1, dims=0)})
                for statistic in shuffled:
                    statistic.update(observed)
    if is_empty:
        raise ValueError("There are no batches to measure the attention on.")
    results = {name: value for statistic in statistics for name, value in statistic.result().items()}
    others = [item for statistic in shuffled for item in statistic.result().items()]
    return {**results, **{f"{name}.shuffled": value for name, value in others}}


@contextmanager
def observing(model: PreTrainedModel, needs: frozenset[str] = frozenset()) -> Iterator[Callable[[Batch], Observed]]:
    """Put the model in evaluation mode, with the attention that returns weights and with hooks, and back.

    Args:
        model: as in `analyse`.
        needs: what statistics ask for, as `Statistic.needs`.

    Yields:
        Function that runs one batch.
    """
    seen: dict[Any, Any] = {}
    model = returning_weights(model)  # what runs may be a twin of the model, and hooks have to be on it
    with ExitStack() as stack:
        observe = stack.enter_context(observation.observing(model))
        for hook in _add_hooks(model, needs, seen):
            stack.callback(hook.remove)

        def observe_more(batch: Batch) -> Observed:
            seen.clear()
            found = observe(batch)
            observed = Observed(found.inputs, _with_answers(found))
            _add_hooked(model, seen, observed)
            seen.clear()
            return observed

        yield observe_more


def feed_forward_values(model: nn.Module) -> dict[str, list[nn.Linear]]:
    """Site → the linear map `fc2` of each of its layers, whose columns are the values of the memory."""
    sites: dict[str, list[nn.Linear]] = {}
    for site, layer in _layers(model):
        branch = getattr(layer, "mlp", layer)
        if isinstance(getattr(branch, "fc2", None), nn.Linear):
            sites.setdefault(site, []).append(branch.fc2)
    return sites


def _layers(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Every layer of encoder and decoder with its site."""
    return [
        ("decoder" if "decoder" in name.split(".") else "encoder", module)
        for name, module in model.named_modules()
        if re.search(r"(^|\.)layers\.\d+$", name)
    ]


def _add_hooks(model: PreTrainedModel, needs: frozenset[str], seen: dict[Any, Any]) -> list[Any]:
    """Let modules put what they see into `seen`, under keys that `_add_hooked` asks for."""
    hooks = []

    def keep_output(module: nn.Module, owner: nn.Module, name: str) -> None:
        hooks.append(module.register_forward_hook(lambda _, inputs, outputs: seen.update({(owner, name): outputs})))

    for module in chain.from_iterable(attention_modules(model).values()):
        if "values" in needs:
            keep_output(module.v_proj, module, "value")
    for _, layer in _layers(model) if "feed_forward" in needs else []:
        branch = getattr(layer, "mlp", getattr(layer, "fc2", None))
        values = getattr(branch, "fc2", branch)
        if isinstance(values, nn.Linear):
            hooks.append(values.register_forward_pre_hook(partial(_keep_input, seen, (layer, "inner"))))
            keep_output(branch, layer, "branch")
            # residual and branch together are what the last norm takes with PostNorm, else what the layer returns
            for norm in (child for name, child in layer.named_children() if "norm" in name):
                hooks.append(norm.register_forward_pre_hook(partial(_keep_sum, seen, layer)))
            keep_output(layer, layer, "outputs")
    return hooks


def _keep_input(seen: dict[Any, Any], key: Any, _module: nn.Module, inputs: tuple) -> None:
    seen[key] = inputs[0]


def _keep_sum(seen: dict[Any, Any], layer: nn.Module, _module: nn.Module, inputs: tuple) -> None:
    if (layer, "branch") in seen:
        seen[layer, "sum"] = inputs[0]


def _with_answers(found: observation.Observed) -> dict[str, list[Rows]]:
    """The rows of every site, and where there are labels whether the model is right."""
    labels, is_right = found.inputs.get("labels"), {}
    if "pixel_values" not in found.inputs:
        is_right = dict.fromkeys(("decoder", "cross"), (found.logits.argmax(-1) == labels).unsqueeze(1))
    elif labels is not None and labels.dim() == 1:
        is_right = dict.fromkeys(found.attention, (found.logits.argmax(-1) == labels)[:, None, None])
    return {
        site: [Rows(rows.weights, rows.visible, rows.real, correct=is_right.get(site)) for rows in layers]
        for site, layers in found.attention.items()
    }


def _add_hooked(model: PreTrainedModel, seen: dict[Any, Any], observed: Observed) -> None:
    """Put values and the feed-forward networks where the hooks have seen them."""
    for site, modules in attention_modules(model).items():
        layers = observed.attention.get(site, [])
        for rows, module in zip(layers, modules, strict=False):
            config = getattr(module, "attention", None)
            if (module, "value") in seen:
                values = _split_heads(seen[module, "value"], rows)
                is_unit = getattr(config, "value_norm", "none") == "l2"
                rows.values = functional.normalize(values, dim=-1) if is_unit else values
    for site, layer in _layers(model):
        if (layer, "branch") in seen:
            real = observed.attention[site][0].real.squeeze(1)  # [batch, length]
            output, whole = seen[layer, "branch"], seen[layer, "outputs"]
            whole = seen.get((layer, "sum"), whole[0] if isinstance(whole, tuple) else whole)
            parts = (seen[layer, "inner"], output, whole - output)
            rows = FeedForwardRows(*(part.reshape(*real.shape, -1)[real].float() for part in parts))
            observed.feed_forward.setdefault(site, []).append(rows)


def _split_heads(states: Tensor, rows: Rows) -> Tensor:  # [batch, length, width] → [batch, heads, length, head_dim]
    return states.float().unflatten(-1, (rows.weights.shape[1], -1)).transpose(1, 2)
