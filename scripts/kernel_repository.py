"""Write a repository that Hugging Face's `kernels` loads: attention without softmax, for processors and NVIDIA GPUs.

    python scripts/kernel_repository.py build/kernels
    python scripts/kernel_repository.py build/flash --flash relu_attention

    build.toml, torch-ext/      what kernel-builder takes: the Python code alone, Triton kernels among it
    build/torch-cuda            the same code, ready to load
    build/torch-stable-abi…     and with what setup.py compiled of native/ on this machine, for processors

The package in it has `rectified_attention`, `native` for `RELUFORMERS_KERNELS`, and functions for the models of
transformers: `attn_implementation="OWNER/reluformers-attention@v6:relu_attention"`.

With `--flash` it has one attention by the functions of the package flash_attn, for programs that ask for "flash" in
the name: `attn_implementation="OWNER/reluformers-flash-relu@v6"`. Of a repository with such functions transformers
takes no others, whatever name it is given.
"""

import argparse
import hashlib
import platform
import shutil
from pathlib import Path

from kernel_interface import ATTENTIONS

import reluformers_kernels
import reluformers_native
from reluformers.errors import run_main
from reluformers.files import atomic_directory, write_json
from reluformers_kernels.compiled import NATIVE_INTERFACE

NAME = "reluformers-attention"
OLDEST_TORCH = "211"  # 2.11, of setup.py; the compiled code knows nothing of torch but its stable interface
SYSTEM = platform.system().lower()
MACHINE = {"AMD64": "x86_64", "arm64": "aarch64"}.get(platform.machine(), platform.machine())
VARIANTS = {"cpu": f"torch-stable-abi{OLDEST_TORCH}-cpu-{MACHINE}-{SYSTEM}", "cuda": "torch-cuda"}
BUILD = """[general]
name = "{name}"
version = {version}
edition = 5
license = "Apache-2.0"
backends = ["cpu", "cuda"]

[torch-noarch]
"""
# the rest of the kernels, of which the attention needs nothing: a repository may need torch alone
OF_MODELS = ("decoder.py", "linear.py", "norms.py", "search.py", "softmax1.py", "triton_norms.py")
INIT = '''"""Attention with an elementwise activation instead of softmax, exact and in memory linear in the length."""

from . import native
from .fused_attention import rectified_attention
from .interface import (
    entmax15_attention,
    relu_attention,
    relu_sum_attention,
    reluformer_attention,
    sparsemax_attention,
)

flash_attn_forward = relu_attention  # transformers looks for this name, and then takes the function that is asked for

__all__ = [
    "entmax15_attention",
    "flash_attn_forward",
    "native",
    "rectified_attention",
    "relu_attention",
    "relu_sum_attention",
    "reluformer_attention",
    "sparsemax_attention",
]
'''


FLASH_INIT = '''"""Attention without softmax, by the functions of the package flash_attn."""

from . import native
from .fused_attention import rectified_attention
from .interface import flash_functions

flash_attn_func, flash_attn_varlen_func = flash_functions({!r})

__all__ = ["flash_attn_func", "flash_attn_varlen_func", "native", "rectified_attention"]
'''


def write_repository(folder: Path, flash: str | None = None) -> None:
    """Write the files of the repository into a folder that is not there yet, or empty.

    Args:
        folder: to be made.
        flash: the one of `ATTENTIONS` that it has by the functions of flash_attn; None for all by their own names.
    """
    repository = NAME if flash is None else f"reluformers-flash-{flash.removesuffix('_attention').replace('_', '-')}"
    package = repository.replace("-", "_")
    source = Path(reluformers_native.__file__)
    libraries = sorted(source.parent.glob("_*.abi3.so"))
    if not libraries:
        raise ValueError(f"no compiled code in {source.parent}: {reluformers_native.explain()}")
    texts = {
        path.name: path.read_text(encoding="utf-8")
        for path in Path(reluformers_kernels.__path__[0]).glob("*.py")
        if path.name not in OF_MODELS
    }
    # the compiled code is the repository's own: looking for it again would load the repository within itself
    texts |= {
        "compiled.py": "from . import native  # noqa: F401\n",
        "__init__.py": INIT if flash is None else FLASH_INIT.format(flash),
    }
    interface = Path(__file__).with_name("kernel_interface.py").read_text(encoding="utf-8")
    texts["interface.py"] = interface.replace("from reluformers_kernels.", "from .")
    texts["native/__init__.py"] = source.read_text(encoding="utf-8")
    digest = hashlib.sha256("".join(texts.values()).encode()).hexdigest()[:12]
    with atomic_directory(folder) as new:
        for directory in (f"torch-ext/{package}", *(f"build/{variant}" for variant in VARIANTS.values())):
            (new / directory / "native").mkdir(parents=True)
            for name, text in texts.items():
                (new / directory / name).write_text(text, encoding="utf-8")
        for backend, variant in VARIANTS.items():
            metadata = {"id": f"_{package}_{backend}_{digest}", "name": repository, "version": NATIVE_INTERFACE}
            metadata |= {"license": "Apache-2.0", "python-depends": [], "backend": {"type": backend}}
            write_json(new / "build" / variant / "metadata.json", metadata)
        for library in libraries:
            shutil.copy(library, new / "build" / VARIANTS["cpu"] / "native")
        build = BUILD.format(name=repository, version=NATIVE_INTERFACE)
        (new / "build.toml").write_text(build, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="to be made")
    parser.add_argument("--flash", choices=list(ATTENTIONS), help="one attention by the functions of flash_attn")
    arguments = parser.parse_args()
    write_repository(arguments.folder, arguments.flash)


if __name__ == "__main__":
    run_main(main)
