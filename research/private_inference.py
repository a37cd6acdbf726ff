r"""Run a saved model on secret shares of two processes (CrypTen): rounds, bytes, and how far the answers are off.

A vision Transformer is run whole; of a translation model it is the encoder, layer by layer. Its attention is computed
as the model has it, and by softmax in its place with the same weights. Inputs of a text are its embeddings, which
whoever has the text looks up.

    pip install -e './research[private]' && pip install --no-deps crypten==0.4.1
    python research/private_inference.py models/digits-relu-vit --data digits/validation.parquet --rows 200
    python research/private_inference.py models/tatoeba-en-de --data sentences.txt --rows 1
"""

import argparse
import json
import math
import sys
import types
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoImageProcessor, AutoModelForImageClassification, AutoModelForSeq2SeqLM, AutoTokenizer

import reluformers  # noqa: F401  # registers the classes, so that no code of a folder runs

# CrypTen 0.4.1 imports a module that torch has removed, and uses nothing of it here
sys.modules["torch.onnx._internal.registration"] = types.ModuleType("registration")
sys.modules["torch.onnx._internal.registration"].registry = None
import crypten  # noqa: E402
from crypten import communicator, mpc  # noqa: E402

LARGEST_VARIANCE = 64.0


class Counter:
    """Rounds and bytes of this process by part of the network."""

    def __init__(self):
        self.rounds = defaultdict(int)
        self.bytes = defaultdict(int)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count what is sent inside."""
        communicator.get().reset_communication_stats()
        yield
        statistics = communicator.get().get_communication_stats()
        self.rounds[name] += statistics["rounds"]
        self.bytes[name] += statistics["bytes"]


class Private:
    """Layers of the library on secret shares: PreNorm, LayerNorm, and ReLU or GELU between the maps.

    Args:
        variances: the largest that each LayerNorm sees, which the model's owner measures.
        by_softmax: take softmax in place of the model's own weights.
    """

    def __init__(self, variances: dict[nn.Module, float], by_softmax: bool):
        self.variances = variances
        self.by_softmax = by_softmax
        self.counter = Counter()

    def linear(self, module: nn.Linear, states: Any) -> Any:
        """Multiply by secret weights."""
        return self.biased(module, states.matmul(crypten.cryptensor(module.weight.detach().t())))

    def biased(self, module: nn.Linear | nn.LayerNorm, product: Any) -> Any:
        """Add the secret bias, if there is one."""
        if module.bias is None:
            return product
        return product + crypten.cryptensor(module.bias.detach())

    def norm(self, module: nn.LayerNorm, states: Any) -> Any:
        """LayerNorm."""
        with self.counter.part("norms"):
            centred = states - states.mean(-1, keepdim=True)
            variance = (centred * centred).mean(-1, keepdim=True) + module.eps
            # CrypTen's inverse root does not converge for numbers of some hundreds
            factor = max(1.0, self.variances[module] / LARGEST_VARIANCE)
            inverse = (variance * (1 / factor)).inv_sqrt() * factor**-0.5
            return self.biased(module, centred * inverse * crypten.cryptensor(module.weight.detach()))

    def attention(self, module: nn.Module, states: Any) -> Any:
        """Self-attention over all keys, by φ(z) / (c·n^α) or by softmax."""
        config = module.attention
        heads = module.q_proj.out_features // module.head_dim

        def split(projected: Any) -> Any:
            return projected.reshape(*projected.shape[:2], heads, module.head_dim).transpose(1, 2)

        with self.counter.part("products of attention"):
            query, key, value = (split(self.linear(m, states)) for m in (module.q_proj, module.k_proj, module.v_proj))
            scores = query.matmul(key.transpose(-1, -2)) * module.scaling
        with self.counter.part("weights"):
            if self.by_softmax:
                weights = scores.softmax(-1)
            else:
                divisor = config.length_coefficient * scores.shape[-1] ** config.length_exponent
                weights = scores.relu() * (1 / divisor)
        with self.counter.part("products of attention"):
            output = weights.matmul(value).transpose(1, 2)
            return self.linear(module.out_proj, output.reshape(*states.shape[:2], -1))

    def feed_forward(self, module: nn.Module, states: Any) -> Any:
        """Two maps with ReLU, or GELU by tanh, between them."""
        with self.counter.part("feed-forward"):
            inner = self.linear(module.fc1, states)
            if module.activation_name == "relu":
                return self.linear(module.fc2, inner.relu())
            cubic = inner + inner * inner * inner * 0.044715
            return self.linear(module.fc2, inner * 0.5 * ((cubic * math.sqrt(2 / math.pi)).tanh() + 1))

    def layer(self, layer: nn.Module, states: Any) -> Any:
        """One encoder layer."""
        states = states + self.attention(layer.self_attn, self.norm(layer.self_attn_norm, states))
        return states + self.feed_forward(layer.mlp, self.norm(layer.mlp_norm, states))


def load(folder: str, data: str, rows: int) -> tuple[nn.Module, Tensor, list[int] | None, nn.Linear | None]:
    """The encoder with its layers, its inputs [rows, length, width], and of images the labels and the head."""
    if json.loads(Path(folder, "config.json").read_text(encoding="utf-8")).get("patch_size"):
        from datasets import Dataset

        chosen = Dataset.from_parquet(data)[:rows]
        model = AutoModelForImageClassification.from_pretrained(folder).eval()
        pixels = AutoImageProcessor.from_pretrained(folder)(chosen["image"], return_tensors="pt")["pixel_values"]
        with torch.no_grad():
            return model.vit, model.vit.embeddings(pixels), chosen["label"], model.classifier
    lines = Path(data).read_text(encoding="utf-8").splitlines()[:rows]
    model = AutoModelForSeq2SeqLM.from_pretrained(folder).eval().get_encoder()
    tokens = AutoTokenizer.from_pretrained(folder)(lines, return_tensors="pt")["input_ids"]
    kept: list[Tensor] = []
    hook = model.layers[0].register_forward_pre_hook(lambda _, inputs: kept.append(inputs[0]))
    with torch.no_grad():
        model(input_ids=tokens)
    hook.remove()
    return model, kept[0], None, None


def plain_states(model: nn.Module, states: Tensor) -> tuple[list[Tensor], dict[nn.Module, float]]:
    """States after each layer, and the largest variance that each norm sees."""
    after_layers = []
    variances = {}

    def keep(module: nn.Module, inputs: tuple[Tensor]) -> None:
        variances[module] = inputs[0].var(-1, unbiased=False).max().item()

    for module in (part for part in model.modules() if isinstance(part, nn.LayerNorm)):
        module.register_forward_pre_hook(keep)
    for layer in model.layers:
        states = layer(states, {"attention_mask": None, "attn_implementation": "eager"})[0]
        after_layers.append(states)
    if model.norm is not None:
        model.norm(states)
    return after_layers, variances


@mpc.run_multiprocess(world_size=2)
def compare(folder: str, data: str, rows: int, by_softmax: bool) -> str:
    """Run both ways, and count; a JSON object."""
    torch.set_num_threads(1)
    crypten.config.cfg.communicator.verbose = True
    model, inputs, labels, head = load(folder, data, rows)
    if by_softmax:
        for module in model.modules():
            if hasattr(module, "attention") and hasattr(module, "q_proj"):
                module.attention = type(module.attention)()  # softmax, on plain numbers
    with torch.no_grad():
        expected, variances = plain_states(model, inputs)
        private = Private(variances, by_softmax)
        states = crypten.cryptensor(inputs)
        errors = []
        for layer, plain in zip(model.layers, expected, strict=True):
            states = private.layer(layer, states)
            errors.append((states.get_plain_text() - plain).abs().max().item())
        record = {"errors": errors, "largest": [plain.abs().max().item() for plain in expected]}
        if head is not None:
            pooled = private.norm(model.norm, states).mean(1)
            with private.counter.part("head"):
                logits = private.linear(head, pooled)
            answers = logits.get_plain_text()
            plain = head(model.norm(expected[-1]).mean(1))
            record["logits"] = (answers - plain).abs().max().item()
            record["agree"] = (answers.argmax(-1) == plain.argmax(-1)).sum().item()
            record["right"] = [(each.argmax(-1) == torch.tensor(labels)).sum().item() for each in (plain, answers)]
    record |= {"rounds": private.counter.rounds, "bytes": private.counter.bytes, "shape": list(inputs.shape)}
    return json.dumps(record)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="folder of a model")
    parser.add_argument("--data", required=True, help="Parquet file with `image` and `label`, or a text")
    parser.add_argument("--rows", type=int, default=1, help="images, or lines of the text")
    options = parser.parse_args()
    for by_softmax in (False, True):
        record = json.loads(compare(options.model, options.data, options.rows, by_softmax)[0])
        print("softmax in its place" if by_softmax else "the model's own attention")
        for part, rounds in record.pop("rounds").items():
            print(f"    {part}: {rounds} rounds, {record['bytes'][part] / 1e6:.2f} MB")
        record["bytes"] = sum(record["bytes"].values())
        print("   ", json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
