"""Compare sequences that several processes share (context parallelism) with whole ones, for `torchrun`: CASES…"""

import sys
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.testing import assert_close
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, BertConfig, MistralConfig

from builders.models import KINDS, build_config, draw_images
from builders.tensor_parallel import EXCHANGED, HEADS, LLAMA, NAMES, OWN, STILL, build_llama, moved, tokens
from reluformers import exchange_attention
from reluformers.context_parallel import context_parallel, own_part
from reluformers.modeling.context_parallel import own_rows
from reluformers.tasks import task_of

LENGTH = 16
BERT = {name: size for name, size in LLAMA.items() if name != "num_key_value_heads"}


def backward(loss: Tensor, model: nn.Module) -> tuple[Tensor, dict[str, Tensor]]:
    """Mean over the processes of the loss and the gradients."""
    model.zero_grad()
    loss.backward()
    numbers = {"loss": loss.detach()} | {name: part.grad for name, part in model.named_parameters()}
    for number in numbers.values():
        dist.all_reduce(number)
        number /= dist.get_world_size()
    return {name: number.clone() for name, number in numbers.items()}


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    for name, number in expected.items():
        assert_close(found[name], number, rtol=1e-6, atol=1e-8, msg=name)


def check_causal(model: nn.Module, mesh: DeviceMesh) -> None:
    model, batch = moved(model), tokens(LENGTH)
    expected = backward(model(**batch).loss, model)
    part = own_part(batch, mesh)
    with context_parallel(model, mesh):
        found = backward(model(**part).loss, model)
    assert_same(found, expected)


def check_encoder(mesh: DeviceMesh) -> None:
    torch.manual_seed(1)
    model = AutoModelForMaskedLM.from_config(BertConfig(**BERT), attn_implementation="entmax15_attention")
    model, batch = moved(model).eval(), {"position_ids": torch.arange(LENGTH)[None], **tokens(LENGTH)}
    del batch["labels"]
    expected = model(**batch).logits
    with context_parallel(model, mesh):
        found = model(**{name: own_rows(states) for name, states in batch.items()}).logits
    assert_close(found, own_rows(expected, mesh=mesh))
    batch = {"input_ids": batch["input_ids"], "position_ids": torch.arange(LENGTH)[None] % 5}
    with pytest.raises(ValueError, match="one text"), context_parallel(model, mesh):
        model(**{name: own_rows(states) for name, states in batch.items()})


def check_translation(preset: str, mesh: DeviceMesh) -> None:
    config = build_config("seq2seq", preset, **HEADS | STILL | OWN[preset])
    torch.manual_seed(1)
    model = moved(task_of(config).auto_class.from_config(config)).train()
    batch = KINDS["seq2seq"].draw((16, 9, 12), (8, 5, 16))
    expected = backward(model(**batch).loss, model)
    with context_parallel(model, mesh):
        found = backward(model(**batch).loss, model)
    assert_same(found, expected)


def check_refused(mesh: DeviceMesh) -> None:
    """What would be computed of the rows of one process alone."""
    model, batch = build_llama("relu_attention"), own_part(tokens(LENGTH), mesh)
    packed = {"input_ids": tokens(LENGTH)["input_ids"], "position_ids": torch.arange(LENGTH)[None] % 5}
    with context_parallel(model, mesh):
        with pytest.raises(ValueError, match="one text"):
            model(**own_part(packed, mesh))
        cache = model(**batch, use_cache=True).past_key_values
        with pytest.raises(ValueError, match="uncached"):
            model(input_ids=torch.tensor([[3], [4]]), past_key_values=cache)
    with pytest.raises(ValueError, match="multiple of"):
        own_part({"input_ids": torch.ones(1, 15, dtype=torch.long)}, mesh)
    with pytest.raises(ValueError, match="sdpa"), context_parallel(build_llama("sdpa"), mesh):
        pass
    config = build_config("vision", "relu")
    images = task_of(config).auto_class.from_config(config)
    with pytest.raises(ValueError, match="keys"), context_parallel(images, mesh):
        images(**draw_images())


def build_mistral() -> nn.Module:
    torch.manual_seed(1)
    return AutoModelForCausalLM.from_config(
        MistralConfig(**LLAMA, sliding_window=5), attn_implementation="reluformer_attention"
    )


CASES = {
    **{name: lambda mesh, name=name: check_causal(build_llama(name), mesh) for name in NAMES},
    **{
        f"exchanged-{number}": lambda mesh, attention=attention: check_causal(
            exchange_attention(build_llama("sdpa"), attention), mesh
        )
        for number, attention in enumerate(EXCHANGED)
    },
    **{f"translation-{preset}": partial(check_translation, preset) for preset in OWN},
    "windows": lambda mesh: check_causal(build_mistral(), mesh),
    "encoder": check_encoder,
    "refused": check_refused,
}


def main() -> None:
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for name in sys.argv[1:] or CASES:
        print(name, flush=True)
        CASES[name](mesh)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
