"""The repository for Hugging Face's `kernels`: what is in it computes, and models take it where they are told to."""

import importlib.util
import runpy
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from kernel_interface import ATTENTIONS as IN_REPOSITORY
from kernel_interface import flash_functions
from transformers import AutoModelForCausalLM
from transformers.integrations import hub_kernels

from any_model.test_by_name import build, logits
from builders.attention_calls import naive
from reluformers.attentions import ATTENTIONS
from reluformers.configuration.configuration_attention import AttentionConfig
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


def check_attention(package: ModuleType) -> None:
    query, key, value = torch.randn(3, 2, 3, 17, 16, generator=torch.Generator().manual_seed(0))
    expected = (query @ key.mT / 4).relu() @ value
    compiled = torch.compile(package.rectified_attention, fullgraph=True, backend="eager")
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


def give_package(monkeypatch, folder: Path, name: str) -> None:
    """Let transformers get the package of a repository from `kernels`."""
    package = load(folder / "build" / SCRIPT["VARIANTS"]["cpu"], name)
    monkeypatch.setattr(hub_kernels, "is_kernels_available", lambda: True)
    monkeypatch.setattr(hub_kernels, "get_kernel", lambda name, **options: package)


def test_from_pretrained_takes_a_function_by_the_id_of_the_repository(repository, monkeypatch, tmp_path):
    give_package(monkeypatch, repository, "_test_repository_by_id")
    model = build("llama", "entmax15_attention")
    model.save_pretrained(tmp_path)
    name = f"owner/name@v{native.INTERFACE}:entmax15_attention"
    opened = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation=name, allow_all_kernels=True).eval()
    assert opened.config._attn_implementation == name
    torch.testing.assert_close(logits(opened), logits(model), rtol=1e-3, atol=1e-3)


def written_out(name, query, key, value, causal, window):
    """One text [length, heads, width], its last query at its last key."""
    places = torch.arange(len(query))[None] + len(key) - len(query)
    options = {**vars(AttentionConfig.parse(ATTENTIONS[name])), "is_causal": causal}
    if window >= 0:
        options |= {"first_keys": places - window, "last_keys": places + window}
    output, _ = naive(*(part.transpose(0, 1)[None] for part in (query, key, value)), options)
    return output[0].transpose(0, 1)


@pytest.mark.parametrize("name", IN_REPOSITORY)
@pytest.mark.parametrize(("causal", "window"), [(False, -1), (True, -1), (True, 2), (False, 2)])
def test_packed_texts_are_attended_one_by_one(name, causal, window):
    _, flash_of_texts = flash_functions(name)
    torch.manual_seed(0)
    lengths, key_lengths = [5, 1, 9, 3], [7, 1, 9, 2]  # the last has a query before all keys
    query = torch.randn(18, 4, 8, requires_grad=True)
    key, value = (torch.randn(19, 2, 8, requires_grad=True) for _ in range(2))
    starts = [torch.tensor([0, *sizes]).cumsum(0, dtype=torch.int32) for sizes in (lengths, key_lengths)]
    options = {"causal": causal, "window_size": (window, window)}
    found = flash_of_texts(query, key, value, *starts, 9, 9, **options)
    texts = zip(query.split(lengths), key.split(key_lengths), value.split(key_lengths), strict=True)
    expected = torch.cat([written_out(name, *text, causal, window) for text in texts])
    torch.testing.assert_close(found, expected)
    weights = torch.randn(18, 4, 8)
    grads = [torch.autograd.grad((one * weights).sum(), (query, key, value)) for one in (found, expected)]
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize(
    ("kind", "name"),
    [("llama", "entmax15_attention"), ("mistral", "relu_attention"), ("modernbert", "entmax15_attention")],
)
def test_programs_that_ask_for_flash_take_a_repository_of_one_attention(kind, name, tmp_path, monkeypatch):
    SCRIPT["write_repository"](tmp_path / "repository", name)
    give_package(monkeypatch, tmp_path / "repository", f"_test_flash_{kind}_{name}")
    model = build(kind, name)
    model.save_pretrained(tmp_path / "model")
    names = {"attn_implementation": f"{kind}/reluformers-flash-{name}@v6", "allow_all_kernels": True}
    opened = type(model).from_pretrained(tmp_path / "model", **names).eval()
    for padding in ("left", "right", "none"):
        outputs = [logits(one, kind, padding) for one in (opened, model)]
        torch.testing.assert_close(*outputs, rtol=1e-3, atol=1e-3)
    packed = {
        "input_ids": torch.arange(3, 19)[None],
        "position_ids": torch.tensor([[*range(7), *range(4), *range(5)]]),
    }
    starts = torch.tensor([0, 7, 11, 16], dtype=torch.int32)
    keywords = {"cu_seq_lens_q": starts, "cu_seq_lens_k": starts, "max_length_q": 7, "max_length_k": 7}
    found, expected = (one(**packed, **keywords).logits for one in (opened, model))
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
    if kind == "llama":
        from any_model.test_continuous_batching import BATCHES, PROMPTS, SETTINGS, new_tokens  # may skip

        options = {"generation_config": SETTINGS, "continuous_batching_config": BATCHES, "warmup": False}
        outputs = opened.generate_batch(PROMPTS, progress_bar=False, **options)
        found = {tuple(output.prompt_ids): output.generated_tokens for output in outputs.values()}
        assert found == {tuple(prompt): new_tokens(model, prompt) for prompt in PROMPTS}


def test_sinks_are_refused():
    with pytest.raises(ValueError, match="s_aux"):
        flash_functions("relu_attention")[0](*torch.randn(3, 1, 4, 2, 8), s_aux=torch.zeros(2))
