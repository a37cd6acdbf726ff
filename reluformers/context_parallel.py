"""Long sequences on several processes, each of which has some rows of every sequence.

with context_parallel(model, mesh):
    model(**own_part(batch, mesh)).loss.backward()
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from transformers import PreTrainedModel

from .attentions import is_ours
from .modeling.context_parallel import own_rows, sequence_on
from .modeling.modeling_base import TransformerPreTrainedModel


@contextmanager
def context_parallel(model: PreTrainedModel, mesh: DeviceMesh) -> Iterator[None]:
    """Let the processes of a mesh share every sequence of a model, in its forward and backward passes.

    Each computes some rows and gathers the keys and values of all; the mean of their gradients is the gradient.

    Args:
        model: of transformers with an attention of this library, which takes `own_part` of a batch; or a translation
            model, which takes the whole batch.
        mesh: of one dimension.

    Raises:
        ValueError: a part of the model has another attention, which would see the rows of one process alone.
    """
    for part in model.modules():
        if isinstance(part, PreTrainedModel) and not isinstance(part, TransformerPreTrainedModel):
            name = part.config._attn_implementation
            if not is_ours(name):
                raise ValueError(f"the attention of {type(part).__name__} is {name!r}, but must be of this library")
    with sequence_on(mesh):
        yield


def own_part(batch: dict[str, Tensor], mesh: DeviceMesh) -> dict[str, Any]:
    """Take the rows of this process from the inputs [batch, length] of a causal language model, for its loss too.

    Raises:
        ValueError: twice the number of processes does not divide the length.
    """
    ids = batch["input_ids"]
    whole = {"position_ids": torch.arange(ids.shape[1], device=ids.device)[None], **batch}
    part = {}
    if "labels" in batch:
        # The next token may be in another process.
        whole["shift_labels"] = torch.nn.functional.pad(batch["labels"][:, 1:], (0, 1), value=-100)
        part["num_items_in_batch"] = whole["shift_labels"].ne(-100).sum() / mesh.size()
    return part | {name: own_rows(states, mesh=mesh) for name, states in whole.items()}
