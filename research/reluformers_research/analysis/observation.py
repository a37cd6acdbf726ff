"""A model's attention on a batch, with what statistics ask for beside the weights.

A hook takes the values from modules with the name that transformers gives them, `v_proj`; of others there are none.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
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
        values: what the weights multiply, [batch, heads, key_len, head_dim].
    """

    values: Tensor | None = None


@contextmanager
def observing(model: PreTrainedModel) -> Iterator[Callable[[Batch], dict[str, list[Rows]]]]:
    """Put the model in evaluation mode, with the attention that returns weights and with hooks, and back.

    Args:
        model: an encoder–decoder or a vision model.

    Yields:
        Function that runs one batch: site, "encoder", "decoder", "cross" or "pooling" → rows of each layer.
    """
    model = returning_weights(model)  # what runs may be a twin of the model, and hooks have to be on it
    modules = attention_modules(model)
    values: dict[nn.Module, Tensor] = {}

    def keep(module: nn.Module, _projection: nn.Module, _inputs: Any, output: Tensor) -> None:
        values[module] = output

    with ExitStack() as stack:
        observe = stack.enter_context(observation.observing(model))
        for module in chain.from_iterable(modules.values()):
            stack.callback(module.v_proj.register_forward_hook(partial(keep, module)).remove)

        def observe_more(batch: Batch) -> dict[str, list[Rows]]:
            sites = {
                site: [Rows(rows.weights, rows.visible, rows.real) for rows in layers]
                for site, layers in observe(batch).items()
            }
            for site, layers in sites.items():
                for rows, module in zip(layers, modules.get(site, []), strict=False):
                    if module in values:
                        rows.values = _split_heads(values[module], rows)
                        if getattr(getattr(module, "attention", None), "value_norm", "none") == "l2":
                            rows.values = functional.normalize(rows.values, dim=-1)
            values.clear()
            return sites

        yield observe_more


def _split_heads(states: Tensor, rows: Rows) -> Tensor:  # [batch, length, width] → [batch, heads, length, head_dim]
    return states.float().unflatten(-1, (rows.weights.shape[1], -1)).transpose(1, 2)
