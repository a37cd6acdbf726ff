"""Compare models that several processes share (tensor parallelism) with whole ones, for `torchrun`: FOLDER CASES…"""

import sys
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.testing import assert_close
from transformers import AutoModelForCausalLM, LlamaConfig
from transformers.distributed import DistributedConfig

from builders.models import KINDS, build_config
from reluformers import exchange_attention
from reluformers.tasks import task_of

STILL = dict.fromkeys(("dropout", "attention_dropout", "activation_dropout", "word_dropout"), 0.0)
HEADS = {"encoder_attention_heads": 4, "decoder_attention_heads": 8, "d_model": 32}
SINKS = {"activation": "softmax1", "threshold": 0.1, "learned_threshold": True, "threshold_per_head": True}
NORMS = {"query_key_norm": "layer_norm", "learned_length_exponent": True}
VALUES = {"learned_threshold": True, "value_norm": "l2"}
# preset → fields of models of this library
OWN = {
    "softmax": {"attention": SINKS},
    "relu-sum": {"activation_function": "swiglu"},
    "reluformer": {"activation_function": "softmax"},
    "qknorm": {},
    "rela-g": {"tying": "none"},
    "relu-vit": {"attention": NORMS},
    "entmax15": {"attention": {"output_gate": "sigmoid"}},
    "relu": {"attention": VALUES, "activation_function": "swish", "learned_swish_beta": True},
}
LLAMA = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 8, "pad_token_id": 0}
LLAMA |= {"intermediate_size": 48, "num_key_value_heads": 4, "max_position_embeddings": 64}
NAMES = ("relu_attention", "relu_sum_attention", "reluformer_attention", "sigmoid_attention", "entmax15_attention")
EXCHANGED = ("qknorm", "rela-g", SINKS, {"preset": "relu-vit", **NORMS}, {"preset": "relu", **VALUES})


def whole(tensor: Tensor | None) -> Tensor | None:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def moved(model: nn.Module) -> nn.Module:
    """The model in float64, with every parameter off its initial value."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model.double()


def check(model: nn.Module, batch: dict, folder: Path, searches: list[dict]) -> None:
    """Assert equal losses, gradients, tokens and saved weights of a model and its shared copy."""
    if dist.get_rank() == 0:
        model.save_pretrained(folder / "whole")
    dist.barrier()
    open_model = partial(type(model).from_pretrained, dtype=torch.float64)
    model = open_model(folder / "whole")
    split = open_model(folder / "whole", distributed_config=DistributedConfig(tp_plan="auto"))
    assert any(isinstance(parameter, DTensor) for parameter in split.parameters())
    prompt = {name: value for name, value in batch.items() if name != "labels"}
    for options in searches:
        tokens = [one.eval().generate(**prompt, **options, max_new_tokens=6) for one in (split, model)]
        assert torch.equal(*tokens), tokens
    for is_training in (False, True):
        losses = [one.train(is_training)(**batch).loss for one in (split, model)]
        assert_close(*losses, rtol=1e-9, atol=1e-9)
    for loss in losses:
        loss.backward()
    others = dict(split.named_parameters())
    for name, parameter in model.named_parameters():
        found = whole(others[name].grad)
        assert (found is None) == (parameter.grad is None), name
        if found is not None:
            assert_close(found, parameter.grad, rtol=1e-6, atol=1e-8, msg=name)
    split.save_pretrained(folder / "saved")
    dist.barrier()
    reopened = dict(open_model(folder / "saved").named_parameters())
    for name, parameter in model.named_parameters():
        assert torch.equal(reopened[name], parameter), name
    dist.barrier()


def check_own(kind: str, preset: str, folder: Path) -> None:
    fields = OWN[preset]
    if kind == "seq2seq":
        fields = HEADS | STILL | fields
    else:
        fields = {("hidden_act" if name == "activation_function" else name): fields[name] for name in fields}
        fields = {"num_attention_heads": 4, "hidden_size": 32, **fields}
        fields.pop("tying", None)
    config = build_config(kind, preset, **fields)
    torch.manual_seed(1)
    model = moved(task_of(config).auto_class.from_config(config))
    check(model, KINDS[kind].draw(), folder, [{"num_beams": 3}] if kind == "seq2seq" else [])


def build_llama(name: str) -> nn.Module:
    torch.manual_seed(1)
    return AutoModelForCausalLM.from_config(LlamaConfig(**LLAMA), attn_implementation=name)


def tokens(length: int) -> dict[str, Tensor]:
    """Two rows, of which the second is padded on the left."""
    ids = torch.randint(3, 90, (2, length), generator=torch.Generator().manual_seed(2))
    mask = torch.ones_like(ids)
    mask[1, :4] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def check_llama(model: nn.Module, folder: Path) -> None:
    check(moved(model), tokens(11), folder, [{"num_beams": 3}])


def check_refused(folder: Path) -> None:
    """A parameter that a model gets when it is split already would be another one in each process."""
    if dist.get_rank() == 0:
        build_llama("sdpa").save_pretrained(folder)
    dist.barrier()
    split = AutoModelForCausalLM.from_pretrained(folder, distributed_config=DistributedConfig(tp_plan="auto"))
    try:
        exchange_attention(split, "qknorm")
    except ValueError:
        return
    raise AssertionError


CASES = {
    **{f"{kind}-{preset}": partial(check_own, kind, preset) for kind in ("seq2seq", "vision") for preset in OWN},
    **{name: lambda folder, name=name: check_llama(build_llama(name), folder) for name in NAMES},
    **{
        f"exchanged-{number}": lambda folder, attention=attention: check_llama(
            exchange_attention(build_llama("sdpa"), attention), folder
        )
        for number, attention in enumerate(EXCHANGED)
    },
    "refused": check_refused,
}


def main() -> None:
    folder, *names = sys.argv[1:]
    dist.init_process_group("gloo")
    for name in names or CASES:
        print(name, flush=True)
        CASES[name](Path(folder) / name)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
