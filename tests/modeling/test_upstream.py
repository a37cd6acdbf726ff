"""What a transformers that changes under a saved model may do: be refused or warned of, never give other answers."""

import logging

import pytest
import torch
from transformers import DynamicCache, EncoderDecoderCache, GenerationMixin

from builders.models import (
    KINDS,
    all_family_models,
    build_model,
    draw_images,
    draw_pairs,
)
from reluformers.modeling import generation_check
from reluformers.modeling.generation_check import find_generation_fault
from reluformers.modeling.modeling_seq2seq import CACHE_NAME, one_cache

# of stock models that ours are not, of other versions, and of nobody
UNKNOWN = ("is_causal", "head_mask", "cross_attn_head_mask", "bool_masked_pos", "typo")
# what the next release could call it
RENAMED = "kv_store"


def parts_of(model) -> dict:
    """Every module with a forward that users or transformers call, and arguments that suffice for it."""
    if model.main_input_name == "pixel_values":
        pixels = {"pixel_values": draw_images()["pixel_values"]}
        return {"classifier": (model, pixels), "base": (model.vit, pixels)}
    batch = draw_pairs()
    ids = batch["input_ids"]
    encoded = model.get_encoder()(input_ids=ids)
    both = {"input_ids": ids, "decoder_input_ids": ids}
    return {
        "head": (model, both),
        "head behind an encoder": (model, {"encoder_outputs": encoded, "decoder_input_ids": ids}),
        "base": (model.model, both),
        "encoder": (model.get_encoder(), {"input_ids": ids}),
        "decoder": (model.get_decoder(), {"input_ids": ids, "encoder_hidden_states": encoded.last_hidden_state}),
    }


@all_family_models
def test_every_forward_refuses_keywords_that_it_does_not_read(kind, preset):
    for module, inputs in parts_of(build_model(preset, kind)).values():
        module(**inputs)
        names = (*UNKNOWN, "position_ids", "attention_mask" if kind == "vision" else "pixel_values")
        for name in names:
            with pytest.raises(TypeError, match=name):
                module(**inputs, **{name: torch.ones(1)})
            with pytest.raises(TypeError, match=name):  # one that says nothing is one of a caller who is mistaken
                module(**inputs, **{name: None})


def empty_cache() -> EncoderDecoderCache:
    return EncoderDecoderCache(DynamicCache(), DynamicCache())


@pytest.fixture
def newer_transformers(monkeypatch):
    """Models take the installed transformers for one that nobody has tried with them."""
    monkeypatch.setattr(generation_check.CheckedGenerationMixin, "_is_generation_checked", False)


@pytest.mark.parametrize("preset", ["reluformer", "qknorm"])
def test_untested_transformers_that_fits_changes_nothing(preset, newer_transformers, caplog):
    model = build_model(preset, **KINDS["seq2seq"].still).train()
    batch = draw_pairs()
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    state = torch.get_rng_state()
    tokens = model.generate(**inputs, max_new_tokens=6)
    assert model.training
    assert torch.equal(torch.get_rng_state(), state)
    assert not caplog.records
    assert torch.equal(model.generate(**inputs, max_new_tokens=6), tokens)
    assert model._generates_with_cache


def test_untested_transformers_that_does_not_fit_is_warned_of_and_gives_the_right_tokens(
    newer_transformers, monkeypatch, caplog
):
    """One whose generation gives the model its cache by another name."""
    model = build_model("reluformer")
    batch = draw_pairs()
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    inputs |= {"max_new_tokens": 6, "no_repeat_ngram_size": 2}  # which transformers alone knows
    expected = [model.generate(**inputs, num_beams=beams) for beams in (1, 2)]
    prepare = GenerationMixin.prepare_inputs_for_generation

    def renamed(self, *args, **kwargs):
        inputs = prepare(self, *args, **kwargs)
        for name in {"cache", "past_key_values"} & inputs.keys():
            if inputs[name] is not None:
                inputs[RENAMED] = inputs.pop(name)
        return inputs

    monkeypatch.setattr(GenerationMixin, "prepare_inputs_for_generation", renamed)
    model = build_model("reluformer")
    with caplog.at_level(logging.WARNING):
        generated = [model.generate(**inputs, num_beams=beams) for beams in (1, 2)]
    assert all(torch.equal(*pair) for pair in zip(expected, generated, strict=True))
    (warning,) = [record for record in caplog.records if "without a cache" in record.getMessage()]
    assert RENAMED in warning.getMessage()


def test_the_check_finds_a_cache_that_is_read_wrong(monkeypatch):
    update = DynamicCache.update

    def shifted(self, key, value, layer_idx, *args, **kwargs):
        key, value = update(self, key, value, layer_idx, *args, **kwargs)
        return key, value.roll(1, dims=2)

    monkeypatch.setattr(DynamicCache, "update", shifted)
    assert "logits differ" in find_generation_fault(build_model("relu"))


def gradients(model) -> torch.Tensor:
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_gradients_beside_a_cache_are_right_or_refused(reentrant):
    still = KINDS["seq2seq"].still
    batch = draw_pairs()
    model = build_model("reluformer", **still).train()
    model(**batch).loss.backward()
    expected = gradients(model)
    given = {CACHE_NAME: empty_cache()}
    model.zero_grad()
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    model(**batch, **given).loss.backward()
    torch.testing.assert_close(gradients(model), expected)
    with torch.no_grad():  # nothing is computed again, so that a cache is no danger
        model.eval()(**batch, **given)
    with pytest.raises(ValueError, match="holds 6 tokens"):
        model.train()(**batch, **given)


def test_generation_goes_on_from_a_cache_or_refuses():
    model = build_model("reluformer")
    batch = draw_pairs()
    del batch["labels"]
    whole = model.generate(**batch, max_new_tokens=10)
    begun = model.generate(**batch, max_new_tokens=4, return_dict_in_generate=True)
    options = {"max_new_tokens": 6, CACHE_NAME: getattr(begun, CACHE_NAME)}
    for new in (1, 3):  # before 3 transformers puts the first token, and the cache holds 4
        with pytest.raises(ValueError, match="holds 4 already"):
            model.generate(**batch, **options, decoder_input_ids=begun.sequences[:, -new:])
    assert torch.equal(model.generate(**batch, **options, decoder_input_ids=begun.sequences), whole)


def test_a_cache_written_under_masks_is_not_read_without_them():
    model = build_model("reluformer")
    batch = draw_pairs()
    del batch["labels"]
    batch |= {"decoder_input_ids": torch.full((3, 4), 5), "decoder_attention_mask": torch.ones(3, 4).long()}
    batch["decoder_attention_mask"][0, :2] = 0
    expected = model(**batch).logits[:, -1:]
    first = {name: part[:, :3] if "decoder" in name else part for name, part in batch.items()}
    step = {**batch, "decoder_input_ids": batch["decoder_input_ids"][:, 3:]}
    for missing in (None, "attention_mask", "decoder_attention_mask"):
        cache = {CACHE_NAME: model(**first, use_cache=True)[CACHE_NAME]}
        given = {name: part for name, part in step.items() if name != missing}
        if missing is None:
            torch.testing.assert_close(model(**given, **cache).logits, expected)
        else:
            with pytest.raises(ValueError, match=f" {missing} that is missing"):
                model(**given, **cache)


def test_a_cache_has_one_name_in_a_call():
    parts = parts_of(build_model("relu"))
    for part in ("head", "base", "decoder"):
        module, inputs = parts[part]
        first, second = (module(**inputs, **{name: empty_cache()})[0] for name in ("past_key_values", "cache"))
        torch.testing.assert_close(first, second, rtol=0, atol=0)
    module, inputs = parts["head"]
    filled = module(**inputs, use_cache=True)[CACHE_NAME]
    empty = empty_cache()
    assert one_cache(filled, empty) is one_cache(empty, filled) is one_cache(None, filled) is filled


def test_untested_transformers_that_never_fits_ends_in_an_error(newer_transformers, monkeypatch):
    prepare = GenerationMixin.prepare_inputs_for_generation

    def without_the_source_mask(self, *args, **kwargs):
        inputs = prepare(self, *args, **kwargs)
        del inputs["attention_mask"]
        return inputs

    monkeypatch.setattr(GenerationMixin, "prepare_inputs_for_generation", without_the_source_mask)
    model = build_model("reluformer")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="logits differ"):
            model.generate(input_ids=draw_pairs()["input_ids"], max_new_tokens=4)


EXCLUSIVE = {"exclusive_output": True}


@pytest.mark.parametrize(
    ("attention", "dtype"),
    [
        *((attention, torch.float32) for attention in ("softmax", "entmax15", EXCLUSIVE)),
        *((attention, torch.bfloat16) for attention in ("rela-g", "relu-sum")),
    ],
)
def test_no_fault_is_found_today_whatever_is_saved(attention, dtype):
    model = build_model("reluformer", attention=attention).to(dtype)
    model.generation_config.update(num_beams=5, max_length=60, repetition_penalty=1.5, do_sample=True, top_k=3)
    assert find_generation_fault(model) is None


def test_no_fault_is_found_in_a_model_of_one_position():
    assert find_generation_fault(build_model("relu", max_position_embeddings=1)) is None
