"""What encoder–decoder models do beside the common: generation, caches, padding, vocabularies."""

import math
import re

import pytest
import torch
from accelerate.utils import send_to_device
from transformers import AutoModelForSeq2SeqLM, DynamicCache, EncoderDecoderCache, StaticCache
from transformers.models.mbart.modeling_mbart import shift_tokens_right

from builders.covering import covering
from builders.models import (
    PRESETS,
    TINY,
    all_presets,
    build_model,
    draw_pairs,
    logits_of,
)
from reluformers import seq2seq_config
from reluformers.modeling.embeddings import SinusoidalPositions
from reluformers.modeling.masks import AttentionMask
from reluformers.modeling.modeling_seq2seq import CACHE_NAME
from reluformers.modeling.regularization import regularizer_sums


def test_sinusoids_are_those_of_the_papers():
    """At place 3 in 8 channels; the papers' rates are in the docstring of the module."""
    halves, usual = ([3 * 10000 ** (-step / steps) for step in range(4)] for steps in (3, 4))
    expected = {
        "sinusoidal": [function(angle) for angle in usual for function in (math.sin, math.cos)],
        "sinusoidal_halves": [function(angle) for function in (math.sin, math.cos) for angle in halves],
        "sinusoidal_marian": [function(angle) for function in (math.sin, math.cos) for angle in usual],
        "sinusoidal_sine": [math.sin(angle) for angle in usual for _ in range(2)],
    }
    for layout, row in expected.items():
        found = SinusoidalPositions(5, 8, layout)(torch.tensor([3]))[0]
        torch.testing.assert_close(found, torch.tensor(row), msg=layout)


# "cache" is the name in transformers from 5.24 on
@pytest.mark.parametrize("case", covering(name=("past_key_values", "cache"), padded=(False, True), preset=PRESETS))
def test_cached_steps_equal_one_shot_with_a_static_cache(case):
    model = build_model(case["preset"]).double()
    batch = draw_pairs()
    decoder_ids = model.prepare_decoder_input_ids_from_labels(batch["labels"])
    inputs = {key: batch[key] for key in ("input_ids", "attention_mask")}
    mask = torch.ones_like(decoder_ids) if case["padded"] else None
    if mask is not None:
        mask[0, :2] = 0
    expected = model(**inputs, decoder_input_ids=decoder_ids, decoder_attention_mask=mask).logits
    encoded = model.get_encoder()(**inputs)
    cache = EncoderDecoderCache(StaticCache(model.config, max_cache_len=9), StaticCache(model.config, max_cache_len=7))
    steps = [
        model(
            encoder_outputs=encoded,
            attention_mask=inputs["attention_mask"],
            decoder_input_ids=decoder_ids[:, step : step + 1],
            decoder_attention_mask=mask[:, : step + 1] if case["padded"] else None,
            use_cache=True,
            **{case["name"]: cache},
        ).logits
        for step in range(decoder_ids.shape[1])
    ]
    torch.testing.assert_close(torch.cat(steps, dim=1), expected)


def test_a_replaced_head_is_not_drawn_anew():
    model = build_model("relu", embedding_norm="fix_norm", tying="none")
    model.resize_token_embeddings(44)
    head = model.lm_head.weight.clone()
    model.post_init()
    assert torch.equal(model.lm_head.weight, head)


def test_resizing_separate_vocabularies_leaves_the_target_side(tmp_path):
    model = build_model("rela-g", decoder_vocab_size=30, tying="decoder", output_bias=True)
    batch = draw_pairs()
    batch["labels"] = batch["labels"].clamp_max(29)
    before = model(**batch).logits
    model.resize_token_embeddings(45)
    torch.testing.assert_close(model(**batch).logits, before)
    assert model.lm_head.out_features == 30
    for part in (model, model.model):
        part.save_pretrained(tmp_path)
        loaded = type(part).from_pretrained(tmp_path)
        assert loaded.get_input_embeddings().num_embeddings == 45
        assert loaded.get_decoder().embed_tokens.num_embeddings == 30


IDS = torch.full((3, 7), 5)
BAD_INPUTS = {
    "max_position_embeddings": {"labels": torch.full((3, TINY["max_position_embeddings"] + 1), 5)},
    "33 tokens": {"input_ids": torch.full((3, TINY["max_position_embeddings"] + 1), 5), "attention_mask": None},
    "EncoderDecoderCache": {"past_key_values": DynamicCache()},
    "covers 4 tokens": {"decoder_attention_mask": torch.ones(3, 4)},
    "covers 7 tokens": {"decoder_attention_mask": torch.ones(3, 7)},
    "cross-attention": {"attention_mask": torch.ones(3, 1, 7, 7, dtype=torch.bool)},
    "input_ids and inputs_embeds": {"input_ids": None},
    "an attention mask": {"attention_mask": torch.ones(3, 7, 7)},
    "must be boolean": {"attention_mask": torch.zeros(3, 1, 7, 7)},
    # compiled code would read a row of it by the number of keys
    **{f"the mask is torch.bool [3, {length}]": {"attention_mask": torch.ones(3, length)} for length in (3, 9)},
    "the target has 2 rows": {"labels": IDS[:2]},
}


@pytest.mark.parametrize("message", BAD_INPUTS)
def test_bad_inputs_are_refused(message):
    for backend in ("eager", "fused"):
        model = build_model("relu")
        model.set_attn_implementation(backend)
        with pytest.raises(ValueError, match=re.escape(message)):
            model(**{**draw_pairs(), **BAD_INPUTS[message]})


def test_a_mask_of_the_new_tokens_alone_is_refused():
    model = build_model("relu")
    batch = draw_pairs()
    ids = torch.ones_like(batch.pop("labels"))
    steps = {**batch, "decoder_input_ids": ids, "decoder_attention_mask": ids, "use_cache": True}
    steps[CACHE_NAME] = EncoderDecoderCache(DynamicCache(), DynamicCache())
    model(**steps)
    with pytest.raises(ValueError, match="covers 6 tokens, but there are 6 past and 6 new ones"):
        model(**steps)


def test_masks_follow_the_inputs_of_a_layer_to_its_device():
    """As accelerate's hooks carry them where a model is split over devices."""
    mask = AttentionMask(4, 4, torch.device("cpu"), torch.ones(2, 4).bool(), torch.tensor(0))
    moved = send_to_device({"attention_mask": mask}, torch.device("meta"))["attention_mask"]
    for part in (moved, moved.dense, moved.key_padding_mask, moved.causal_offset):
        assert part.device.type == "meta"


def test_labels_of_mbart_begin_with_their_last_token():
    model = build_model("softmax", label_shift="last_label")
    labels = torch.tensor([[5, 6, 7, 2, -100, -100], [8, 2, -100, -100, -100, -100], [9, 5, 6, 7, 8, 2]])
    expected = shift_tokens_right(labels, model.config.pad_token_id)
    assert torch.equal(model.prepare_decoder_input_ids_from_labels(labels), expected)


def test_rows_of_one_source_are_regularized_as_those_of_its_copies():
    model = build_model("reluformer", dropout=0.0, attention_dropout=0.0).train()
    source = draw_pairs()["input_ids"]
    labels = torch.randint(4, 40, (2 * len(source), 5))
    labels[0, 3:] = -100
    sums = []
    for rows in (source, source.repeat_interleave(2, 0)):
        encoded = model.get_encoder()(input_ids=rows).last_hidden_state
        decoded = model.get_decoder()(labels.clamp_min(1), encoder_hidden_states=encoded, query_mask=labels.ne(-100))
        sums.append(regularizer_sums(decoded.site_rows, model.config.entropy_bound))
    torch.testing.assert_close(*sums)


@pytest.mark.parametrize(
    ("preset", "fields", "spreads"),
    [
        # U(±b) has a spread of b/√3: q, k and v count as one map of 3·64 outputs
        ("softmax", {"initialization": "xavier"}, {"q_proj": (2 / 256) ** 0.5, "out_proj": (2 / 128) ** 0.5}),
        ("rela-g", {"initialization": "normal"}, dict.fromkeys(("q_proj", "out_proj", "fc1", "fc2"), 0.02)),
        ("qknorm", {}, {"k_proj": (2 / 320) ** 0.5, "out_proj": (2 / 320) ** 0.5, "fc2": (2 / 256) ** 0.5}),
        ("rela-i", {}, {"output_norm": 1 / 8}),
    ],
)
def test_maps_start_as_the_configuration_says(preset, fields, spreads):
    sizes = {"d_model": 64, "encoder_ffn_dim": 192, "decoder_ffn_dim": 192, **fields}
    model = AutoModelForSeq2SeqLM.from_config(seq2seq_config(preset, **{**TINY, **sizes}))
    spreads["embed_tokens"] = 0.01 / 3**0.5 if preset == "qknorm" else 1 / 8
    for name, spread in spreads.items():
        weights = torch.cat([p.flatten() for key, p in model.named_parameters() if key.endswith(f"{name}.weight")])
        assert weights.std().item() == pytest.approx(spread, rel=0.1), name
    if model.config.embedding_bias:
        biases = torch.cat([model.model.encoder.embedding_bias, model.model.decoder.embedding_bias])
        assert biases.std().item() == pytest.approx(1 / 8, rel=0.25)
        assert biases.abs().max() <= (3 / 64) ** 0.5


@all_presets
def test_padding_on_either_side_changes_nothing(preset):
    model = build_model(preset)
    batch = draw_pairs()
    batch["labels"] = batch["labels"].masked_fill(batch["labels"] == -100, 5)
    right = logits_of(model, **batch)
    lengths = batch["attention_mask"].sum(1).tolist()
    for row, length in enumerate(lengths):
        alone = model(input_ids=batch["input_ids"][row : row + 1, :length], labels=batch["labels"][row : row + 1])
        torch.testing.assert_close(alone.logits[0], right[row], rtol=1e-4, atol=1e-5)
    for key in ("input_ids", "attention_mask"):
        rows = zip(batch[key], lengths, strict=True)
        batch[key] = torch.stack([row.roll(len(row) - length) for row, length in rows])
    torch.testing.assert_close(logits_of(model, **batch), right, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("preset", ["softmax", "reluformer"])
def test_masks_of_any_form_and_embeddings_as_input(preset):
    model = build_model(preset)
    batch = draw_pairs()
    expected = logits_of(model)
    mask = batch["attention_mask"]
    for form in (mask[:, None, None].bool(), mask[:, None, None], 3 * mask):
        torch.testing.assert_close(logits_of(model, attention_mask=form), expected)
    embeddings = model.get_input_embeddings()(batch["input_ids"])
    torch.testing.assert_close(logits_of(model, input_ids=None, inputs_embeds=embeddings), expected)


def test_a_ready_mask_may_tell_queries_apart_in_the_encoder():
    encoder = build_model("reluformer").get_encoder()
    ids = draw_pairs()["input_ids"]
    causal = torch.ones(3, 1, 7, 7, dtype=torch.bool).tril()
    states = encoder(ids, causal).last_hidden_state
    first = encoder(ids[:, :1], causal[:, :, :1, :1]).last_hidden_state
    torch.testing.assert_close(states[:, :1], first)
    assert not torch.allclose(states, encoder(ids).last_hidden_state)
