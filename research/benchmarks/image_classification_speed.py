"""Training speed of image classifiers beside transformers' ViT and timm's, interleaved in one process.

    python research/benchmarks/image_classification_speed.py --size Ti/4 --batch_size 64
    python research/benchmarks/image_classification_speed.py --size S/16 --batch_size 8 --steps 2

A step is forward, loss, backward and AdamW on a batch of random pixels. All models have one shape: class token,
learned positions, PreNorm, biases, tanh-GELU, no dropout. Peers are `ViTForImageClassification` with the attention
implementations `sdpa` and `eager`, and timm's `VisionTransformer`. Every round runs all candidates once, in turn;
ratios to the peer with the highest median are taken inside a round, of speed and, on CPUs, of processor time, which
neighbours on the machine cannot stretch as they do the wall's; above 1 is faster than the peer. There set
OMP_WAIT_POLICY=PASSIVE too: spinning threads make a step many times as long. `--profile` lists where the time goes.
"""

import argparse
import importlib.util
import os
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile
from transformers import AutoModelForImageClassification, ViTConfig, ViTForImageClassification, set_seed

from reluformers import ATTENTION_PRESETS, VISION_SIZES, vision_config
from reluformers.errors import run_main
from reluformers_kernels import norms

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PEERS = ("transformers sdpa", "transformers eager", "timm")
PRESETS = ("relu-vit", "rela-g", "qknorm", "softmax", "reluformer", "relu", "sparsemax", "entmax15")
NORMED_PRESETS = ("rela-g", "qknorm")
TORCH_NORMS = ", norms in PyTorch"
FEWEST_NUMBERS = norms.FEWEST_NUMBERS
WARMUP = 2


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="Ti/4", choices=VISION_SIZES)
    parser.add_argument("--image_size", type=int, help="pixels, where they are not those of the size")
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3, help="updates a round")
    parser.add_argument("--presets", nargs="+", choices=ATTENTION_PRESETS, help="all that can be built, if not given")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--bf16", action="store_true", help="autocast, for all")
    parser.add_argument("--torch_norms", action="store_true", help="rela-g and qknorm without compiled norms as well")
    parser.add_argument("--profile", type=int, default=0, metavar="ROWS", help="operations to list for each candidate")
    options = parser.parse_args()
    options.presets = options.presets or [*PRESETS]
    options.shape = VISION_SIZES[options.size]
    if options.image_size:
        options.shape = {**options.shape, "image_size": options.image_size}
    return options


def build(name: str, options: argparse.Namespace) -> nn.Module:
    """A fresh model; peers get the shape of ours."""
    set_seed(1)
    if name == "timm":
        model = build_timm(options)
    elif name in PEERS:
        shape = {**options.shape, "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6}
        config = ViTConfig(**shape, hidden_dropout_prob=0.0, num_labels=options.classes)
        config._attn_implementation = name.split()[1]
        model = ViTForImageClassification(config)
    else:
        preset = name.removesuffix(TORCH_NORMS)
        config = vision_config(preset, options.size, **options.shape, pooling="cls", num_labels=options.classes)
        model = AutoModelForImageClassification.from_config(config)
    return model.to(DEVICE).train()


def build_timm(options: argparse.Namespace) -> nn.Module:
    with torchvision_stand_in():
        from timm.models.vision_transformer import VisionTransformer
    shape = options.shape
    return VisionTransformer(
        img_size=shape["image_size"],
        patch_size=shape["patch_size"],
        embed_dim=shape["hidden_size"],
        depth=shape["num_hidden_layers"],
        num_heads=shape["num_attention_heads"],
        mlp_ratio=shape["intermediate_size"] / shape["hidden_size"],
        num_classes=options.classes,
        act_layer="gelu_tanh",
    )


class StandIn(type):
    """A class whose attributes are such classes."""

    def __getattr__(cls, name: str) -> "StandIn":
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn(name, (), {})


class StandInModule(ModuleType):
    """A package whose names are stand-in classes."""

    __path__ = ()

    def __getattr__(self, name: str) -> StandIn:
        return getattr(StandIn(self.__name__, (), {}), name)


class StandInFinder(MetaPathFinder, Loader):
    """Finds a stand-in for torchvision and all of its modules."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.partition(".")[0] == "torchvision" else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return StandInModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


@contextmanager
def torchvision_stand_in() -> Iterator[None]:
    """Let timm be imported where there is no torchvision, which has no wheel for some builds of torch.

    timm takes transforms, data sets, FrozenBatchNorm2d and feature extraction from it while it is imported; its
    VisionTransformer calls none of them, so that what is measured is timm's own code.
    """
    if importlib.util.find_spec("torchvision") is not None:
        yield
        return
    finder = StandInFinder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]


class Candidate:
    """A model with its optimiser and a batch."""

    def __init__(self, name: str, options: argparse.Namespace, pixels: Tensor, labels: Tensor):
        self.is_timm, self.bf16 = name == "timm", options.bf16
        self.fewest_numbers = sys.maxsize if name.endswith(TORCH_NORMS) else FEWEST_NUMBERS
        self.model = build(name, options)
        self.parameters = sum(parameter.numel() for parameter in self.model.parameters())
        # that of transformers' Trainer
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.pixels, self.labels = pixels, labels

    def step(self) -> None:
        """One update."""
        norms.FEWEST_NUMBERS = self.fewest_numbers
        with torch.autocast(DEVICE, torch.bfloat16, enabled=self.bf16):
            if self.is_timm:
                loss = functional.cross_entropy(self.model(self.pixels), self.labels)
            else:
                loss = self.model(pixel_values=self.pixels, labels=self.labels).loss
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def seconds(self, steps: int) -> tuple[float, float]:
        """Wall time and processor time of some updates."""
        wall, processor = time.perf_counter(), time.process_time()
        for _ in range(steps):
            self.step()
        if DEVICE == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - wall, time.process_time() - processor

    def print_profile(self, name: str, steps: int, rows: int) -> None:
        """The operations that take most of the time of a step, without those that they call."""
        kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if DEVICE == "cuda" else [])]
        with profile(activities=kinds) as profiler:
            self.seconds(steps)
        key = "self_device_time_total" if DEVICE == "cuda" else "self_cpu_time_total"
        events = sorted(profiler.key_averages(), key=lambda event: -getattr(event, key))
        total = sum(getattr(event, key) for event in events)
        print(f"\n{name}: {total / 1000 / steps:.1f} ms a step\n| operation | ms | share | calls |\n|---|---|---|---|")
        for event in events[:rows]:
            spent = getattr(event, key)
            print(f"| {event.key} | {spent / 1000 / steps:.1f} | {spent / total:.1%} | {event.count / steps:.0f} |")


def candidates(options: argparse.Namespace) -> dict[str, Candidate]:
    """Peers that can be built here, and the presets."""
    shape = (options.batch_size, 3, options.shape["image_size"], options.shape["image_size"])
    batch = torch.randn(shape, device=DEVICE), torch.randint(options.classes, shape[:1], device=DEVICE)
    found = {}
    plain = [name + TORCH_NORMS for name in NORMED_PRESETS if name in options.presets and options.torch_norms]
    for name in (*PEERS, *options.presets, *plain):
        try:
            found[name] = Candidate(name, options, *batch)
        except (ImportError, RuntimeError) as error:
            if name != "timm":
                raise
            print(f"timm: left out, it cannot be imported ({error})")
    return found


def measure(found: dict[str, Candidate], options: argparse.Namespace) -> dict[str, list[tuple[float, float]]]:
    """Wall time and processor time of each candidate, round by round."""
    names = list(found)
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for candidate in found.values():
        candidate.seconds(WARMUP)
    for number in range(options.rounds):
        # the order turns, so that no candidate always runs behind the same one
        for name in names[number % len(names) :] + names[: number % len(names)]:
            seconds[name].append(found[name].seconds(options.steps))
    return seconds


def print_table(found: dict[str, Candidate], seconds: dict[str, list[tuple[float, float]]], images: int) -> None:
    """Median speed and ratios to the faster peer, taken round by round; `images` in each."""
    walls = {name: statistics.median(wall for wall, _ in values) for name, values in seconds.items()}
    peer = min((name for name in PEERS if name in walls), key=walls.get)
    kinds = ("speed", "processor time") if DEVICE == "cpu" else ("speed",)
    headers = ("model", "parameters", "images/s, median", *(f"{kind} to {peer}, median (min–max)" for kind in kinds))
    print(f"| {' | '.join(headers)} |\n|{'---|' * len(headers)}")
    for name, values in seconds.items():
        cells = [name, f"{found[name].parameters:,}", f"{images / walls[name]:,.1f}"]
        for kind in range(len(kinds)):
            ratios = sorted(other[kind] / own[kind] for other, own in zip(seconds[peer], values, strict=True))
            cells.append(f"{statistics.median(ratios):.2f} ({ratios[0]:.2f}–{ratios[-1]:.2f})")
        print(f"| {' | '.join(cells)} |")
    for name in NORMED_PRESETS:
        if name + TORCH_NORMS in found:
            pairs = zip(seconds[name + TORCH_NORMS], seconds[name], strict=True)
            ratios = torch.tensor([plain[-1] / own[-1] for plain, own in pairs])
            low, middle, high = ratios.quantile(torch.tensor([0.25, 0.5, 0.75])).tolist()
            print(f"{name}: {middle:.2f} ({low:.2f}–{high:.2f}) times as fast with compiled norms, median (quartiles)")


def main() -> None:
    options = parse_arguments()
    torch.set_num_threads(options.threads)
    found = candidates(options)
    seconds = measure(found, options)
    print(f"torch {torch.__version__} on {DEVICE}, {options.threads} threads of {os.cpu_count()} cores, {options}")
    print_table(found, seconds, options.batch_size * options.steps)
    if options.profile:
        for name, candidate in found.items():
            candidate.print_profile(name, options.steps, options.profile)


if __name__ == "__main__":
    run_main(main)
