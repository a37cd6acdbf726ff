"""Exchanged attentions of models of transformers: trained, saved, opened by a stranger, taken off again."""

import itertools

import pytest
import torch
from accelerate import cpu_offload
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, Trainer, TrainingArguments

from reluformers import exchange_attention, load_adapter, restore_attention, save_adapter
from reluformers.conversion.exchanged_fit import fit_attention
from reluformers.modeling.attention_interface import InterfaceAttention
from reluformers.modeling.modeling_exchanged import SUBMODULE, ExchangedModel

from .test_by_name import LLAMA, MODELS, build, exchanged, inputs, logits

# models whose positions are computed, not saved: `build` has drawn them anew
SAVED = [name for name in MODELS if name != "marian"]


@pytest.mark.parametrize(("name", "preset"), list(zip(SAVED, itertools.cycle(["rela-g", "qknorm"]), strict=False)))
def test_an_exchanged_model_is_saved_and_taken_back(name, preset, tmp_path):
    model = build(name, "eager")
    before = logits(model, name)
    assert exchange_attention(model, preset) is model
    changed = logits(model, name)
    assert not torch.allclose(changed, before, atol=1e-3)
    model.save_pretrained(tmp_path / "whole")
    auto = {"llama": AutoModelForCausalLM, "t5": AutoModelForSeq2SeqLM}.get(name, ExchangedModel)
    again = auto.from_pretrained(tmp_path / "whole").eval()
    assert torch.equal(logits(again, name), changed)
    assert isinstance(again, type(build(name, "eager")))
    save_adapter(model, tmp_path / "adapter")
    restore_attention(model)
    assert torch.equal(logits(model, name), before)
    assert type(model).__name__ == MODELS[name][0]
    load_adapter(model, tmp_path / "adapter")
    assert torch.equal(logits(model, name), changed)


def test_adapter_whose_weights_cannot_be_written_leaves_no_earlier_one(monkeypatch, tmp_path):
    def fill_the_disk(*_, **__):
        raise OSError("No space left on device")

    model = exchanged("rela-g")
    save_adapter(model, tmp_path)
    monkeypatch.setattr("reluformers.exchange.save_file", fill_the_disk)
    with pytest.raises(OSError, match="No space"):
        save_adapter(model, tmp_path)
    with pytest.raises(ValueError, match="cannot be read"):
        load_adapter(build("llama", "eager"), tmp_path)


@pytest.mark.parametrize("name", ["llama", "gemma3", "opt", "modernbert", "vit", "whisper", "t5"])
def test_it_starts_as_the_attention_by_name(name):
    for attention, same in (("relu-vit", "relu_attention"), ({"learned_scale": True}, "softmax_attention")):
        outputs = [logits(model, name) for model in (exchanged(attention, name), build(name, same))]
        torch.testing.assert_close(*outputs, rtol=1e-3, atol=1e-3)


def test_a_model_with_scalars_of_its_own_computes_where_its_weights_are_fetched():
    model = exchanged("qknorm").eval()
    expected = logits(model)
    cpu_offload(model, execution_device="cpu")
    with torch.no_grad():
        assert torch.equal(logits(model), expected)


def test_decoders_are_exclusive_where_they_are_named():
    model = exchange_attention(
        build("marian", "eager"), {"exclusive_output": True}, ["model.decoder.layers.*.self_attn"]
    )
    batch = {key: part for key, part in inputs("marian").items() if "decoder" not in key}
    tokens = model.generate(**batch, max_new_tokens=6)
    assert torch.equal(model.generate(**batch, max_new_tokens=6, use_cache=False), tokens)


def test_some_sites_keep_softmax():
    model = exchange_attention(build("bart", "eager"), "relu-vit", sites=["model.decoder.layers.*.encoder_attn"])
    added = [name for name, _ in model.named_modules() if name.endswith(SUBMODULE)]
    assert added == [f"model.decoder.layers.{layer}.encoder_attn.{SUBMODULE}" for layer in range(2)]
    weights = model(**inputs("bart"), output_attentions=True)
    rows = weights.encoder_attentions[0].sum(-1)
    torch.testing.assert_close(rows, torch.ones_like(rows))
    assert (weights.cross_attentions[0] == 0).any()


@pytest.mark.parametrize(
    ("name", "attention", "sites"),
    [
        *(("bart", "relu-vit", sites) for sites in ("model.decoder.*", ["nowhere.*"])),
        *((name, {"exclusive_output": True}, None) for name in ("bert", "marian")),
    ],
)
def test_sites_that_cannot_be_exchanged_are_refused(name, attention, sites):
    model = build(name, "eager")
    with pytest.raises(ValueError):
        exchange_attention(model, attention, sites)
    assert not isinstance(model, ExchangedModel)


@pytest.mark.parametrize(
    "attention", ["rela-g", "qknorm", {"activation": "relu", "learned_threshold": True, "threshold": 0.5}], ids=str
)
def test_parameters_of_another_attention_that_is_asked_for_start_as_its_configuration_says(attention, tmp_path):
    exchanged("reluformer").save_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, attention=attention)
    parts = [part for part in model.modules() if isinstance(part, InterfaceAttention)]
    assert parts
    for part in parts:
        assert part.scale is None or part.scale.item() == pytest.approx(part.attention.initial_scale(part.head_dim))
        assert part.threshold is None or part.threshold.item() == part.attention.threshold
        if part.output_norm is not None:
            assert (part.output_norm.weight == 1).all()
            assert 0 < part.output_norm.gate.abs().max() <= (3 / LLAMA["hidden_size"]) ** 0.5


def test_the_trainer_trains_and_saves_it(tmp_path):
    model = exchanged("qknorm")
    rows = [{"input_ids": row, "labels": row} for row in torch.randint(3, 90, (8, 9))]
    arguments = TrainingArguments(tmp_path, max_steps=2, learning_rate=0.05, save_steps=2, report_to=[])
    before = {name: part.clone() for name, part in model.named_parameters() if SUBMODULE in name}
    Trainer(model, arguments, train_dataset=rows).train()
    after = dict(model.named_parameters())
    assert before
    assert all((after[name] != part).any() for name, part in before.items())
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint-2")
    assert torch.equal(logits(again.eval()), logits(model.eval()))
    assert list((tmp_path / "checkpoint-2").glob("*.py"))
    model.save_pretrained(tmp_path / "of another process", False)
    assert not list((tmp_path / "of another process").glob("*"))


@pytest.mark.parametrize(
    ("name", "attention"),
    [
        ("llama", "rela-g"),
        ("bert", "qknorm"),
        ("vit", {"preset": "reluformer", "learned_scale": True}),
        ("bart", {"learned_scale": True}),
    ],
)
def test_a_fit_brings_the_outputs_nearer_to_softmax(name, attention):
    model = exchanged(attention, name)
    batch = inputs(name, "none")
    wanted = logits(build(name, "softmax_attention"), name)
    before = (logits(model, name) - wanted).norm()
    errors = fit_attention(model, [batch])
    assert {f"{module}.{SUBMODULE}" for module in errors} <= dict(model.named_modules()).keys()
    assert max(errors.values()) <= 1
    if attention == {"learned_scale": True}:
        torch.testing.assert_close(logits(model, name), wanted, rtol=1e-3, atol=1e-3)
    else:
        assert (logits(model, name) - wanted).norm() < 0.9 * before
