r"""Time of whole models of transformers with an attention of ours by name, as a share of the time with SDPA.

    OMP_WAIT_POLICY=PASSIVE python research/benchmarks/any_model_speed.py --lengths 512 2048 4096

Tiny depth, real widths: Llama with grouped keys, BERT and ViT, of random weights, one row. In each
round every attention runs once, in turning order; the share is taken inside the round, and its median is shown.
"""

import argparse
import statistics
import time
from functools import partial
from itertools import product

import torch
from attention import in_turn, ratios_to
from transformers import BertConfig, BertModel, LlamaConfig, LlamaModel, ViTConfig, ViTModel

import reluformers  # noqa: F401 (registers the names)

PEER = "sdpa"
MODELS = ("llama", "bert", "vit")
SIZES = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 2, "num_attention_heads": 4}


def build(kind: str, length: int) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """A model and its inputs of about that many tokens."""
    if kind == "llama":
        config = LlamaConfig(vocab_size=1000, num_key_value_heads=2, max_position_embeddings=length, **SIZES)
        return LlamaModel(config), {"input_ids": torch.randint(3, 1000, (1, length)), "use_cache": False}
    if kind == "bert":
        config = BertConfig(vocab_size=1000, max_position_embeddings=length, **SIZES)
        return BertModel(config), {"input_ids": torch.randint(3, 1000, (1, length))}
    side = round(length**0.5)
    config = ViTConfig(image_size=16 * side, **SIZES)
    return ViTModel(config), {"pixel_values": torch.randn(1, 3, 16 * side, 16 * side)}


def seconds(model, inputs, attention: str, has_backward: bool) -> float:
    """Time of one call, and back if asked."""
    model.set_attn_implementation(attention)
    start = time.perf_counter()
    with torch.set_grad_enabled(has_backward):
        output = model(**inputs).last_hidden_state
        if has_backward:
            output.float().square().mean().backward()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 2048, 4096])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument(
        "--attentions", nargs="+", default=["relu_attention", "relu_sum_attention", "entmax15_attention"]
    )
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    print("| model | dtype | tokens | pass | sdpa, ms |", " | ".join(options.attentions), "|")
    print("|---" * (5 + len(options.attentions)) + "|")
    for kind, dtype, length in product(options.models, options.dtypes, options.lengths):
        torch.manual_seed(0)
        torch.set_default_dtype(getattr(torch, dtype))
        model, inputs = build(kind, length)
        torch.set_default_dtype(torch.float32)
        model.eval()  # without dropout, for which SDPA would write its weights out
        for name, has_backward in (("forward", False), ("both", True)):
            calls = {each: partial(seconds, model, inputs, each, has_backward) for each in (PEER, *options.attentions)}
            in_turn(calls, 1)  # warms up
            times = in_turn(calls, options.rounds)
            shares = ratios_to(PEER, times)
            row = [kind, dtype, str(length), name, f"{1000 * statistics.median(times[PEER]):.0f}"]
            row += [f"{statistics.median(shares[each]):.2f}" for each in options.attentions]
            print("|", " | ".join(row), "|", flush=True)


if __name__ == "__main__":
    main()
