"""Code that goes to the Hub runs on strangers' machines: what it may do is proved from its syntax trees."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = (ROOT / "configuration", ROOT / "modeling")
PAYLOAD = sorted(path for folder in FOLDERS for path in folder.glob("*.py") if path.stem != "__init__")
# modules that reach no file, network or process by themselves
MODULES = {
    *("base64", "bisect", "collections.abc", "contextlib", "contextvars", "copy", "dataclasses", "difflib"),
    *("functools", "inspect", "io", "logging", "math", "re", "threading", "types", "typing"),
    *("huggingface_hub.dataclasses", "huggingface_hub.errors", "torch", "torch.nn", "torch.utils.checkpoint"),
    "reluformers_kernels",  # of the installed library, if there is one
    *("transformers", "transformers.masking_utils", "transformers.modeling_layers", "transformers.modeling_outputs"),
    *("transformers.pytorch_utils", "transformers.utils", "transformers.utils.generic"),
    "transformers.utils.output_capturing",
}
NAMES_OF_MODULES = {
    "transformers.models.auto": {"modeling_auto"},
    "pathlib": {"PurePath"},
    "entmax": {"entmax15", "sparsemax"},
    "PIL": {"Image", "ImageOps"},
    # these reach the processes that the caller has joined to a group, and no others
    "torch.distributed": {"_functional_collectives"},
    "torch.distributed.tensor": {"DTensor", "Partial"},
    "torch.distributed.device_mesh": {"DeviceMesh"},
}
# what runs text, opens a file or reaches the interpreter's insides
NAMES = {"__builtins__", "__import__", "breakpoint", "compile", "eval", "exec", "globals", "input", "locals", "open"}
ATTRIBUTES = {
    *("__builtins__", "__class__", "__code__", "__globals__", "__loader__", "__subclasses__", "__reduce__"),
    *("FileIO", "FileHandler", "basicConfig", "memmap", "from_file", "fromfile", "tofile"),
    *("open_code", "read_bytes", "read_text", "write_bytes", "write_text", "unlink", "rmtree", "mkdir"),
    *("Popen", "popen", "spawn", "system", "urlopen", "urlretrieve", "import_module"),
}
# `.load` of an image that is in memory is another thing, so these count by their whole name
CALLS = {
    *("torch.load", "torch.save", "torch.hub", "torch.jit", "torch.package", "torch.serialization", "torch.classes"),
    *("torch.ops.load_library", "torch.distributed", "torch.multiprocessing", "torch.utils", "io.open"),
}
LOADERS = {"from_pretrained", "pipeline", "save_pretrained", "push_to_hub"}
# who calls what transformers gives for files and for the Hub, and who imports what others may not
MAY_LOAD = {
    "configuration_base.py": {"save_pretrained", "push_to_hub"},
    "modeling_base.py": {"save_pretrained"},
    "modeling_seq2seq.py": {"from_pretrained"},  # notes the revision
    "pipeline_translation.py": {"from_pretrained", "save_pretrained"},
    "endpoint.py": {"pipeline"},
    "attention_interface.py": {"function.__code__"},  # the names of what a mask function of transformers knows
    "modeling_exchanged.py": {
        *("from_pretrained", "save_pretrained", "push_to_hub", "__code__"),
        "from transformers.dynamic_module_utils import custom_object_save",
    },
}


def dotted(node: ast.AST) -> str:
    """`a.b.c` of an attribute; empty for anything that does not begin with a name."""
    if isinstance(node, ast.Name):
        return node.id
    parent = dotted(node.value) if isinstance(node, ast.Attribute) else ""
    return f"{parent}.{node.attr}" if parent else ""


def import_faults(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [f"import {alias.name}" for alias in node.names if alias.name not in MODULES]
    if isinstance(node, ast.ImportFrom) and not node.level and node.module not in MODULES:
        allowed = NAMES_OF_MODULES.get(node.module, set())
        return [f"from {node.module} import {alias.name}" for alias in node.names if alias.name not in allowed]
    return []


def use_faults(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Name) and node.id in NAMES:
        return [node.id]
    if isinstance(node, ast.Attribute):
        name = dotted(node)
        # an image is opened from memory only
        return [name or node.attr] if node.attr in ATTRIBUTES or name in CALLS else []
    if isinstance(node, ast.Call) and dotted(node.func) == "Image.open":
        is_in_memory = isinstance(node.args[0], ast.Call) and dotted(node.args[0].func) == "io.BytesIO"
        has_formats = "formats" in [keyword.arg for keyword in node.keywords]
        return [] if is_in_memory and has_formats else ["Image.open"]
    return []


def text_faults(tree: ast.AST) -> list[str]:
    """Names of attributes and addresses hidden in strings that are no documentation."""
    documentation = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and isinstance(node.body[0], ast.Expr)
    }
    texts = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation
    ]
    return [text for text in texts if "://" in text or text in NAMES | ATTRIBUTES]


def find_faults(text: str, may_load: set[str] = frozenset()) -> list[str]:
    """What a file does that code on the Hub must not do."""
    tree = ast.parse(text)
    faults = text_faults(tree)
    for node in ast.walk(tree):
        faults += import_faults(node) + use_faults(node)
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else dotted(node.func)
            faults += [name] if name in LOADERS else []
    return [fault for fault in faults if fault not in may_load]


@pytest.mark.parametrize("path", PAYLOAD, ids=lambda path: path.name)
def test_payload_touches_nothing_but_what_transformers_gives(path):
    assert find_faults(path.read_text(encoding="utf-8"), MAY_LOAD.get(path.name, set())) == []


def test_exceptions_are_still_needed():
    for name, calls in MAY_LOAD.items():
        (path,) = (path for path in PAYLOAD if path.name == name)
        assert set(find_faults(path.read_text(encoding="utf-8"))) == calls


@pytest.mark.parametrize(
    "text",
    [
        "import os",
        "def f():\n    import socket",
        "try:\n    import pickle\nexcept ImportError:\n    pass",
        "from pathlib import Path",
        "run = eval",
        "getattr(x, '__globals__')",
        "().__class__.__base__.__subclasses__()",
        "torch.load(x)",
        "torch.utils.cpp_extension.load(x)",
        "Image.open(path)",
        "Image.open(io.BytesIO(data))",
        "AutoModel.from_pretrained(x)",
        "x = 'https://example.com'",
    ],
)
def test_faults_are_found(text):
    assert find_faults(text)


def test_the_harmless_passes():
    harmless = '''
"""See https://example.com."""
import torch
from PIL import Image
from .field_checks import check_choice

def f(self, data):
    """See https://example.com too."""
    self.eval()
    image = Image.open(io.BytesIO(data), formats=FORMATS)
    image.load()
    return torch.compile(self)
'''
    assert find_faults(harmless) == []
