"""Packaging of reluformers: names, requirements and the mapping of the two Hub folders under the import name."""

import platform
from pathlib import Path

from setuptools import Extension, find_packages, setup

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
# the installation goes on, and attention is computed in PyTorch.
INSTRUCTION_SETS = {"generic": []}
if platform.machine() in ("x86_64", "AMD64"):
    INSTRUCTION_SETS |= {"avx2": ["-mavx2", "-mfma"], "avx512": ["-mavx512f", "-mfma"]}
    # all processors with the first have the others
    MORE = ["-mavx512bf16", "-mavx512vnni", "-mavx512bw", "-mavx512vl"]
    INSTRUCTION_SETS["avx512_bf16"] = [*INSTRUCTION_SETS["avx512"], *MORE]
    INSTRUCTION_SETS["amx"] = [*INSTRUCTION_SETS["avx512_bf16"], "-mamx-tile", "-mamx-bf16"]
NATIVE = [
    Extension(
        f"reluformers_native._{name}",
        ["native/attention.c", "native/norms.c", "native/decoder.c"],
        depends=["native/vectors.h"],
        extra_compile_args=["-O3", "-std=gnu11", "-fno-math-errno", "-fno-trapping-math", "-Wno-psabi", "-g0", *flags],
        py_limited_api=True,  # it knows nothing of Python at all
        optional=True,
    )
    for name, flags in INSTRUCTION_SETS.items()
]

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
        *find_packages(include=["reluformers", "reluformers.*"]),
        "reluformers_cli",
        "reluformers_kernels",
        "reluformers_native",
    ],
    ext_modules=NATIVE,
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
    entry_points={"console_scripts": ["reluformers=reluformers_cli:main"]},
)
