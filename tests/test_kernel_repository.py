"""The repository for Hugging Face's `kernels`: what is in it computes, and models take it where they are told to."""

import importlib.util
import re
import runpy
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from transformers import AttentionInterface, AttentionMaskInterface, AutoModelForCausalLM
from transformers.integrations import hub_kernels
from transformers.masking_utils import flash_attention_mask
from transformers.utils import is_kernels_available

from any_model.test_by_name import build, inputs, real_part
from reluformers_kernels import compiled

native = pytest.importorskip("reluformers_native")
ROOT = Path(__file__).parents[1]
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "kernel_repository.py"))
pytestmark = pytest.mark.skipif(not native.is_available(), reason="needs compiled code")


@pytest.fixture(scope="module")
def repository(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("kernels") / "repository"
    SCRIPT["write_repository"](folder)
    return folder


def load(folder: Path, name: str) -> ModuleType:
    """As `kernels` does it: the package under a name of its own."""
    spec = importlib.util.spec_from_file_location(name, folder / "__init__.py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pages_name_its_version():
    pages = ("docs/any-model.md", "scripts/kernel_repository.py")
    text = "".join((ROOT / page).read_text(encoding="utf-8") for page in pages)
    found = re.findall(r"reluformers-attention@v(\d+)|branch `?v(\d+)|version=(\d+), trust", text)
    assert {number for numbers in found for number in numbers if number} == {str(native.INTERFACE)}


def check_attention(package: ModuleType) -> None:
    query, key, value = torch.randn(3, 2, 3, 17, 16, generator=torch.Generator().manual_seed(0))
    expected = (query @ key.mT / 4).relu() @ value
    compiled = torch.compile(package.rectified_attention, fullgraph=True, backend="aot_eager")
    for attention in (package.rectified_attention, compiled):
        torch.testing.assert_close(attention(query, key, value), expected)


@pytest.mark.parametrize("backend", ["cpu", "cuda"])
def test_variants_compute_attention(repository, backend, monkeypatch):
    for other in ("reluformers_native", "transformers"):  # it may need nothing but torch
        monkeypatch.setitem(sys.modules, other, None)
    monkeypatch.setenv(compiled.KERNELS_VARIABLE, "nobody/asks")
    package = load(repository / "build" / SCRIPT["VARIANTS"][backend], f"_test_repository_{backend}")
    assert package.rectified_attention.__globals__["native"] is package.native
    assert package.native.is_available() == (backend == "cpu")
    check_attention(package)
    for module in ("interface", "triton_attention"):
        importlib.import_module(f"{package.__name__}.{module}")


def test_models_take_compiled_code_from_the_repository_that_is_named(monkeypatch):
    calls, found = [], SimpleNamespace(INTERFACE=native.INTERFACE)

    def get_kernel(*arguments, **options):
        calls.append((arguments, options))
        return SimpleNamespace(native=found)

    monkeypatch.setitem(sys.modules, "kernels", SimpleNamespace(get_kernel=get_kernel))
    monkeypatch.delenv(compiled.KERNELS_VARIABLE, raising=False)
    assert compiled._find_native() is native
    assert not calls
    monkeypatch.setenv(compiled.KERNELS_VARIABLE, "owner/name")
    assert compiled._find_native() is found
    assert calls == [(("owner/name",), {"version": native.INTERFACE, "backend": "cpu", "trust_remote_code": True})]
    found.INTERFACE += 1
    with pytest.raises(ValueError, match="owner/name"):
        compiled._find_native()


def test_kernels_loads_the_repository(repository, monkeypatch):
    kernels = pytest.importorskip("kernels")
    from kernels._rust import Build

    assert [str(backend) for backend in Build.open(repository).general.backends] == ["cpu", "cuda"]
    package = kernels.get_local_kernel(repository, backend="cpu")
    check_attention(package)
    monkeypatch.setenv(compiled.KERNELS_VARIABLE, "owner/name")
    monkeypatch.setenv("LOCAL_KERNELS", f"owner/name={repository}")
    assert compiled._find_native() is package.native


@pytest.mark.parametrize("by", ["transformers", "kernels"])
def test_from_pretrained_takes_a_function_by_the_id_of_the_repository(repository, by, monkeypatch, tmp_path):
    if by == "transformers":  # which then asks `kernels` for the package
        package = load(repository / "build" / SCRIPT["VARIANTS"]["cpu"], "_test_repository_by_id")
        monkeypatch.setattr(hub_kernels, "is_kernels_available", lambda: True)
        monkeypatch.setattr(hub_kernels, "get_kernel", lambda name, **options: package)
    elif not is_kernels_available():
        pytest.skip("needs the versions of kernels that transformers takes")
    monkeypatch.setenv("LOCAL_KERNELS", f"owner/name={repository}")
    model, batch = build("llama", "entmax15_attention"), inputs("llama")
    model.save_pretrained(tmp_path)
    name = f"owner/name@v{native.INTERFACE}:entmax15_attention"
    opened = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation=name, allow_all_kernels=True).eval()
    assert opened.config._attn_implementation == name
    found, expected = (real_part(one(**batch).logits, batch) for one in (opened, model))
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    "name", ["relu_attention", "relu_sum_attention", "reluformer_attention", "entmax15_attention"]
)
@pytest.mark.parametrize("kind", ["llama", "mistral", "modernbert", "vit"])
def test_models_of_transformers_take_its_functions_with_the_masks_of_flash_attention(
    repository, kind, name, monkeypatch
):
    monkeypatch.setitem(sys.modules, "reluformers_native", None)
    package = load(repository / "build" / SCRIPT["VARIANTS"]["cpu"], "_test_repository_interface")
    AttentionInterface.register("of_the_repository", getattr(package, name))
    AttentionMaskInterface.register("of_the_repository", flash_attention_mask)
    for padding in ("left", "none"):
        batch = inputs(kind, padding)
        found, expected = (build(kind, one)(**batch).logits for one in ("of_the_repository", name))
        torch.testing.assert_close(real_part(found, batch), real_part(expected, batch), rtol=1e-3, atol=1e-3)
    if kind in ("llama", "mistral"):
        options = {"max_new_tokens": 5, "do_sample": False, "eos_token_id": None}
        tokens = [build(kind, one).generate(**inputs(kind), **options) for one in ("of_the_repository", name)]
        assert torch.equal(*tokens)
