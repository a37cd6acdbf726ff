"""What encoder–decoder models do beside the common: generation, caches, padding, vocabularies."""

from functools import partial

import pytest
import torch
from accelerate.utils import send_to_device
from torch import nn
from transformers import AutoModelForSeq2SeqLM, DynamicCache, EncoderDecoderCache, StaticCache
from transformers.models.mbart.modeling_mbart import shift_tokens_right

from builders.models import KINDS, TINY, all_families, all_presets, build_model, draw_pairs, logits_of
from reluformers import seq2seq_config
from reluformers.modeling.attention import MultiHeadAttention
from reluformers.modeling.masks import AttentionMask
from reluformers.modeling.modeling_seq2seq import CACHE_NAME
from reluformers.modeling.regularization import add_regularizer_sums

RICH = {
    "attention": {
        "preset": "rela-g",
        "learned_scale": True,
        "learned_length_exponent": True,
        "learned_threshold": True,
        "query_key_norm": "layer_norm",
        "output_gate": "silu",
        "exclusive_output": True,
    },
    "activation_function": "swiglu",
    "learned_swish_beta": True,
    "feed_forward_norm": "layer_norm",
    "embedding_bias": True,
    "output_bias": True,
    "norm_type": "scale_norm",
    "norm_position": "pre",
}


@pytest.mark.parametrize(
    ("preset", "fields", "spreads"),
    [
        # U(±b) has a spread of b/√3: q, k and v count as one map of 3·64 outputs
        ("softmax", {"initialization": "xavier"}, {"q_proj": (2 / 256) ** 0.5, "out_proj": (2 / 128) ** 0.5}),
        ("reluformer", {"initialization": "xavier"}, {"v_proj": (2 / 256) ** 0.5, "fc1": (2 / 256) ** 0.5}),
        ("rela-g", {"initialization": "normal"}, {"q_proj": 0.02, "out_proj": 0.02, "fc1": 0.02, "fc2": 0.02}),
        ("qknorm", {}, {"k_proj": (2 / 320) ** 0.5, "out_proj": (2 / 320) ** 0.5, "fc2": (2 / 256) ** 0.5}),
        ("rela-i", {}, {"output_norm": (1 / 64) ** 0.5}),
    ],
)
def test_maps_start_as_the_configuration_says(preset, fields, spreads):
    sizes = {"d_model": 64, "encoder_ffn_dim": 192, "decoder_ffn_dim": 192, **fields}
    model = AutoModelForSeq2SeqLM.from_config(seq2seq_config(preset, **{**TINY, **sizes}))
    for name, spread in spreads.items():
        weights = torch.cat([p.flatten() for key, p in model.named_parameters() if key.endswith(f"{name}.weight")])
        assert weights.std().item() == pytest.approx(spread, rel=0.1), name
    embeddings = model.get_input_embeddings().weight
    expected = 0.01 / 3**0.5 if model.config.embedding_norm == "fix_norm" else 64**-0.5
    assert embeddings.std().item() == pytest.approx(expected, rel=0.1)
    if model.config.embedding_bias:
        biases = torch.cat([model.model.encoder.embedding_bias, model.model.decoder.embedding_bias])
        assert biases.std().item() == pytest.approx(1 / 8, rel=0.25)
        assert biases.abs().max() <= (3 / 64) ** 0.5


@pytest.mark.parametrize(("offset", "rows"), [(0, 32), (2, 34)])
def test_learned_positions_are_those_of_the_configuration(offset, rows):
    model = build_model(position_embedding_type="learned", position_offset=offset)
    assert model.model.encoder.embed_positions.num_embeddings == rows


def test_embeddings_may_have_a_dropout_of_their_own():
    model = build_model(**KINDS["seq2seq"].still, embedding_dropout=0.5).train()
    states = model.model.encoder.embed(torch.full((1, 9), 5), None, torch.arange(9)[None])
    assert 0.3 < (states == 0).float().mean() < 0.7


def test_state_dict_keys_are_public_api():
    model = build_model("rela-g", **RICH, encoder_layers=1, decoder_layers=1)
    attention = [f"{p}_proj.{kind}" for p in ("q", "k", "v", "out") for kind in ("weight", "bias")]
    attention += ["scale", "length_exponent", "threshold", "query_norm.weight", "key_norm.weight"]
    attention += ["output_norm.weight", "output_norm.gate", "gate_proj.weight", "gate_proj.bias"]
    mlp = [f"{layer}.{kind}" for layer in ("fc1", "fc_linear", "fc2", "norm") for kind in ("weight", "bias")]
    mlp.append("swish_beta")
    expected = {"lm_head.weight", "lm_head.bias"}
    for side, sites in (("encoder", ["self_attn"]), ("decoder", ["self_attn", "cross_attn"])):
        layer = f"model.{side}.layers.0"
        expected |= {f"model.{side}.{name}" for name in ("embed_tokens.weight", "embedding_bias", "norm.weight")}
        expected |= {f"{layer}.{site}.{name}" for site in sites for name in attention}
        expected |= {f"{layer}.{site}_norm.weight" for site in [*sites, "mlp"]}
        expected |= {f"{layer}.mlp.{name}" for name in mlp}
    assert set(model.state_dict()) == expected


@all_presets
def test_padding_on_either_side_changes_nothing(preset):
    model, batch = build_model(preset), draw_pairs()
    batch["labels"] = batch["labels"].masked_fill(batch["labels"] == -100, 5)
    right = logits_of(model, labels=batch["labels"])
    for row in range(3):
        length = int(batch["attention_mask"][row].sum())
        alone = model(input_ids=batch["input_ids"][row : row + 1, :length], labels=batch["labels"][row : row + 1])
        torch.testing.assert_close(alone.logits[0], right[row], rtol=1e-4, atol=1e-5)
    shifts = (batch["attention_mask"] == 0).sum(1).tolist()
    for key in ("input_ids", "attention_mask"):
        batch[key] = torch.stack([row.roll(shift) for row, shift in zip(batch[key], shifts, strict=True)])
    left = logits_of(model, **batch)
    torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-5)


def test_left_padded_target_prefix_changes_nothing():
    model, batch = build_model("reluformer"), draw_pairs((5,), (4,))
    plain = model(**batch).logits
    ids = model.prepare_decoder_input_ids_from_labels(batch["labels"])
    padded = torch.cat([torch.zeros(1, 2, dtype=torch.long), ids], dim=1)
    mask = torch.tensor([[0, 0, 1, 1, 1, 1]])
    inputs = {"input_ids": batch["input_ids"], "decoder_input_ids": padded, "decoder_attention_mask": mask}
    torch.testing.assert_close(model(**inputs).logits[:, 2:], plain)


@all_presets
def test_generation_agrees_between_caches(preset):
    check_generation_between_caches(build_model(preset))


def test_exclusive_generation_agrees_between_caches():
    check_generation_between_caches(build_model("reluformer", attention={"exclusive_output": True}))


def check_generation_between_caches(model):
    batch = draw_pairs()
    inputs = {key: batch[key] for key in ("input_ids", "attention_mask")}
    for beams in (1, 3):
        settings = {"num_beams": beams, "max_new_tokens": 8, "do_sample": False}
        expected = model.generate(**inputs, **settings)
        assert expected.shape[1] > 2
        assert torch.equal(model.generate(**inputs, **settings, use_cache=False), expected)
        assert torch.equal(model.generate(**inputs, **settings, cache_implementation="static"), expected)


def test_rows_of_one_source_are_regularized_as_those_of_its_copies():
    model = build_model("reluformer", dropout=0.0, attention_dropout=0.0).train()
    source = draw_pairs()["input_ids"]
    labels = torch.randint(4, 40, (2 * len(source), 5))
    labels[0, 3:] = -100
    once = model(encoder_outputs=model.model.encoder(input_ids=source), labels=labels)
    copied = model(encoder_outputs=model.model.encoder(input_ids=source.repeat_interleave(2, 0)), labels=labels)
    torch.testing.assert_close(once.logits, copied.logits)
    sums = [
        model.model.decoder(
            labels.clamp_min(1),
            encoder_hidden_states=model.model.encoder(input_ids=rows).last_hidden_state,
            query_mask=labels.ne(-100),
        ).regularizer_sums
        for rows in (source, source.repeat_interleave(2, 0))
    ]
    torch.testing.assert_close(*sums)


def test_beam_search_keeps_the_source_in_place():
    model, batch = build_model("reluformer"), draw_pairs()
    output = model.generate(
        input_ids=batch["input_ids"], num_beams=3, max_new_tokens=6, return_dict_in_generate=True, output_scores=True
    )
    assert type(output[CACHE_NAME].cross_attention_cache).__name__ == "SourceCache"
    given = EncoderDecoderCache(DynamicCache(config=model.config), DynamicCache(config=model.config))
    model.generate(input_ids=batch["input_ids"], max_new_tokens=3, **{CACHE_NAME: given})
    assert type(given.cross_attention_cache) is DynamicCache


@all_families
def test_generates_in_training_mode(preset):
    model, batch = build_model(preset).train(), draw_pairs()
    assert model.generate(input_ids=batch["input_ids"], num_beams=2, max_new_tokens=4).shape[0] == 3
    states = model.get_encoder()(batch["input_ids"], return_dict=False)
    output = model(encoder_outputs=states, labels=batch["labels"])
    assert output.encoder_hidden_states is None


@all_families
def test_sampling_and_several_sequences(preset):
    batch = draw_pairs()
    output = build_model(preset).generate(
        input_ids=batch["input_ids"], do_sample=True, max_new_tokens=6, num_return_sequences=2, top_k=5
    )
    assert output.shape[0] == 6
    assert output.max() < TINY["vocab_size"]


@pytest.mark.parametrize("name", ["past_key_values", "cache"])  # the second is that of transformers from 5.24 on
@pytest.mark.parametrize("padded", [False, True])
@all_presets
def test_cached_steps_equal_one_shot_with_a_static_cache(preset, padded, name):
    model, batch = build_model(preset).double(), draw_pairs()
    decoder_ids = model.prepare_decoder_input_ids_from_labels(batch["labels"])
    inputs = {key: batch[key] for key in ("input_ids", "attention_mask")}
    mask = torch.ones_like(decoder_ids) if padded else None
    if padded:
        mask[0, :2] = 0
    expected = model(**inputs, decoder_input_ids=decoder_ids, decoder_attention_mask=mask).logits
    encoded = model.get_encoder()(**inputs)
    cache = EncoderDecoderCache(StaticCache(model.config, max_cache_len=9), StaticCache(model.config, max_cache_len=7))
    steps = [
        model(
            encoder_outputs=encoded,
            attention_mask=inputs["attention_mask"],
            decoder_input_ids=decoder_ids[:, step : step + 1],
            decoder_attention_mask=mask[:, : step + 1] if padded else None,
            use_cache=True,
            **{name: cache},
        ).logits
        for step in range(decoder_ids.shape[1])
    ]
    torch.testing.assert_close(torch.cat(steps, dim=1), expected)


@pytest.mark.parametrize("layers", [DynamicCache, partial(StaticCache, max_cache_len=9)], ids=["dynamic", "static"])
def test_a_mask_of_the_new_tokens_alone_is_refused(layers):
    model = build_model("relu").eval()
    inputs = {name: draw_pairs()[name] for name in ("input_ids", "attention_mask")}
    ids = torch.ones(len(inputs["input_ids"]), 4, dtype=torch.long)
    cache = EncoderDecoderCache(*(layers(config=model.config) for _ in range(2)))
    steps = {**inputs, "decoder_input_ids": ids, "decoder_attention_mask": ids, "use_cache": True, CACHE_NAME: cache}
    model(**steps)
    with pytest.raises(ValueError, match="covers 4 tokens, but there are 4 past and 4 new ones"):
        model(**steps)


def test_sums_meet_where_the_last_layer_lies():
    parts = [torch.ones(4), None, torch.ones(4, device="meta")]
    assert add_regularizer_sums(parts).device.type == "meta"


def test_a_mask_of_another_size_is_refused():
    attention = MultiHeadAttention(16, 2, "relu-vit")
    for implementation in ("eager", "fused"):
        with pytest.raises(ValueError, match="4 queries and 4 keys, but there are 4 and 6"):
            attention(
                torch.randn(1, 4, 16),
                torch.randn(1, 6, 16),
                AttentionMask(4, 4, torch.device("cpu")),
                attn_implementation=implementation,
            )


class LogitsOnly(nn.Module):
    """What `torch.export` is asked for: tensors in, a tensor out."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask, decoder_input_ids):
        return self.model(
            input_ids=input_ids, attention_mask=attention_mask, decoder_input_ids=decoder_input_ids, use_cache=False
        ).logits


@all_families
def test_exports_with_dynamic_sizes(preset):
    model = LogitsOnly(build_model(preset)).eval()
    sizes = {name: torch.export.Dim(name, min=2, max=30) for name in ("batch", "source", "target")}
    source, target = {0: sizes["batch"], 1: sizes["source"]}, {0: sizes["batch"], 1: sizes["target"]}

    def draw(rows, source_len, target_len):
        source, target = (torch.randint(4, TINY["vocab_size"], (rows, size)) for size in (source_len, target_len))
        return source, torch.ones_like(source), target

    program = torch.export.export(model, draw(3, 7, 5), dynamic_shapes=(source, source, target), strict=False)
    arguments = draw(2, 9, 11)
    # an export writes weights out, and the model may run compiled code: ReLA divides their differences by a small norm
    torch.testing.assert_close(program.module()(*arguments), model(*arguments), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("tying", ["all", "decoder", "none"])
@pytest.mark.parametrize("preset", ["softmax", "qknorm"])
def test_resizing_keeps_both_sides_and_the_ties(preset, tying, tmp_path):
    model = build_model(preset, tying=tying)
    before = logits_of(model)
    model.resize_token_embeddings(TINY["vocab_size"] + 5)
    encoder, decoder = model.model.encoder.embed_tokens.weight, model.model.decoder.embed_tokens.weight
    assert encoder.shape[0] == decoder.shape[0] == model.lm_head.weight.shape[0] == TINY["vocab_size"] + 5
    assert (encoder is decoder) == (tying == "all")
    assert (model.lm_head.weight is decoder) == (tying != "none")
    torch.testing.assert_close(logits_of(model)[..., : TINY["vocab_size"]], before)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    torch.testing.assert_close(logits_of(loaded), logits_of(model))


def test_a_shared_vocabulary_of_given_size_is_resized_and_saved(tmp_path):
    model = build_model("softmax", decoder_vocab_size=TINY["vocab_size"])
    model.resize_token_embeddings(45)
    model.save_pretrained(tmp_path)
    config = AutoModelForSeq2SeqLM.from_pretrained(tmp_path).config
    assert (config.vocab_size, config.decoder_vocab_size) == (45, 45)


@pytest.mark.parametrize("preset", ["softmax", "qknorm"])
def test_nothing_is_drawn_anew_after_resizing(preset):
    model = build_model(preset, tying="none")
    model.resize_token_embeddings(45)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    model.post_init()
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, before[name]), name


def test_ties_are_cut_when_a_folder_is_opened(tmp_path):
    build_model("softmax").save_pretrained(tmp_path)
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, tie_word_embeddings=False)
    weights = [
        part.weight for part in (model.lm_head, model.model.encoder.embed_tokens, model.model.decoder.embed_tokens)
    ]
    assert len({weight.data_ptr() for weight in weights}) == 3


@pytest.mark.parametrize("eos", [None, [2, 7]])
def test_generation_ends_at_any_end_or_at_none(eos):
    model = build_model("softmax", eos_token_id=eos)
    batch = draw_pairs()
    free = model.generate(batch["input_ids"], eos_token_id=-1, max_new_tokens=12, min_new_tokens=12)
    found = model.generate(batch["input_ids"], max_new_tokens=12)
    if eos is None:
        assert torch.equal(found, free)
    for row, whole in zip(found.tolist(), free.tolist(), strict=True):
        ends = [place for place, token in enumerate(whole) if token in (eos or []) and place]
        length = ends[0] + 1 if ends else len(whole)
        assert row[:length] == whole[:length]
        assert set(row[length:]) <= {model.config.pad_token_id}


@pytest.mark.parametrize("target_size", [30, 60])
@pytest.mark.parametrize("tying", ["decoder", "none"])
def test_resizing_separate_vocabularies_leaves_the_target_side(tying, target_size, tmp_path):
    model = build_model("rela-g", decoder_vocab_size=target_size, tying=tying, output_bias=True)
    batch = draw_pairs()
    batch["labels"] = batch["labels"].clamp_max(29)
    before = model(**batch).logits
    model.resize_token_embeddings(45)
    torch.testing.assert_close(model(**batch).logits, before)
    assert model.lm_head.out_features == target_size
    for part in (model, model.model):
        part.save_pretrained(tmp_path)
        loaded = type(part).from_pretrained(tmp_path)
        assert loaded.get_input_embeddings().num_embeddings == 45
        assert loaded.get_decoder().embed_tokens.num_embeddings == target_size


def test_resizing_without_a_head_keeps_both_sides(tmp_path):
    model = build_model("rela-g", tying="decoder").model
    model.resize_token_embeddings(45)
    model.save_pretrained(tmp_path)
    assert type(model).from_pretrained(tmp_path).decoder.embed_tokens.num_embeddings == 45


def test_separate_vocabularies():
    model = build_model("rela-g", decoder_vocab_size=30)
    batch = draw_pairs()
    batch["labels"] = batch["labels"].clamp_max(29)
    output = model.train()(**batch)
    output.loss.backward()
    assert output.logits.shape[-1] == 30
    model.eval().resize_token_embeddings(45)
    assert model.model.encoder.embed_tokens.num_embeddings == 45
    assert model.model.decoder.embed_tokens.num_embeddings == 30


def test_bad_inputs_are_named():
    model, batch = build_model(), draw_pairs()
    too_long = torch.full((1, TINY["max_position_embeddings"] + 1), 5)
    with pytest.raises(ValueError, match=r"33 tokens.*max_position_embeddings is 32"):
        model(input_ids=too_long, labels=batch["labels"][:1])
    with pytest.raises(ValueError, match="33 tokens"):
        model.generate(input_ids=batch["input_ids"], max_new_tokens=40, min_new_tokens=40)
    with pytest.raises(ValueError, match="is a DynamicCache, but must be an EncoderDecoderCache"):
        model(input_ids=batch["input_ids"], decoder_input_ids=batch["input_ids"], past_key_values=DynamicCache())
    for length in (4, 7):
        with pytest.raises(ValueError, match=f"covers {length} tokens, but there are 0 past and 6 new ones"):
            logits_of(model, decoder_attention_mask=torch.ones(3, length))
    with pytest.raises(ValueError, match="cross-attention"):
        logits_of(model, attention_mask=torch.ones(3, 1, 7, 7, dtype=torch.bool))
    with pytest.raises(ValueError, match="exactly one of input_ids and inputs_embeds"):
        model(labels=batch["labels"])
    for mask in (torch.ones(7), torch.ones(3, 7, 7)):
        with pytest.raises(ValueError, match=r"an attention mask is \[.*\], but must be \[batch, length\]"):
            logits_of(model, attention_mask=mask)
        with pytest.raises(ValueError, match=r"an attention mask is \[.*\], but must be \[batch, length\]"):
            logits_of(model, decoder_attention_mask=mask[..., :6])
    with pytest.raises(ValueError, match="encoder_hidden_states is None, but must be"):
        model.get_decoder()(input_ids=batch["input_ids"])
    additive = torch.zeros(3, 1, 7, 7)
    with pytest.raises(ValueError, match="must be boolean"):
        logits_of(model, attention_mask=additive)


def test_a_static_cache_is_no_longer_than_the_positions():
    """On the way only the device would know, and ends in an assertion."""
    model, inputs = build_model(), {"input_ids": draw_pairs()["input_ids"], "max_length": 40}
    message = "33 tokens, but max_position_embeddings is 32"
    with pytest.raises(ValueError, match=message):
        model.generate(**inputs, cache_implementation="static")
    given = EncoderDecoderCache(StaticCache(model.config, max_cache_len=40), StaticCache(model.config, 7))
    with pytest.raises(ValueError, match=message):
        model.generate(**inputs, **{CACHE_NAME: given})
    any_token = list(range(model.config.vocab_size))
    for options in ({}, {"cache_implementation": "static", "use_cache": False}):
        assert model.generate(**inputs, **options, eos_token_id=any_token).shape == (3, 2)


@pytest.mark.parametrize("backend", ["eager", "fused"])
@pytest.mark.parametrize("length", [1, 3, 9])
def test_a_source_mask_of_another_length_is_refused(length, backend):
    """Compiled code would read a row of it by the number of keys."""
    model, batch = build_model("relu"), draw_pairs()
    model.set_attn_implementation(backend)
    mask, target = torch.ones(3, length, dtype=torch.long), batch["labels"].clamp_min(0)
    message = rf"the mask is torch.bool \[3, {length}\], but must be bool, of 7 keys"
    with pytest.raises(ValueError, match=message):
        model(input_ids=batch["input_ids"], attention_mask=mask, decoder_input_ids=target)
    encoded = model.model.encoder(batch["input_ids"])
    with pytest.raises(ValueError, match=message):
        model(encoder_outputs=encoded, attention_mask=mask, decoder_input_ids=target)


def test_any_number_but_zero_marks_a_real_token():
    model, batch = build_model(), draw_pairs()
    expected = model(**batch).logits
    torch.testing.assert_close(model(**{**batch, "attention_mask": 3 * batch["attention_mask"]}).logits, expected)


@pytest.mark.parametrize("rows", [1, 2, 4])
def test_target_rows_must_fit_the_source(rows):
    model, batch = build_model("relu"), draw_pairs()
    target = torch.full((rows, 6), 5)
    with pytest.raises(ValueError, match=f"the target has {rows} rows, but must have a multiple of the source's 3"):
        model(input_ids=batch["input_ids"], decoder_input_ids=target)
    with pytest.raises(ValueError, match=f"the target has {rows} rows"):
        model(input_ids=batch["input_ids"], labels=target)


def test_masks_follow_the_inputs_of_a_layer_to_its_device():
    """As accelerate's hooks carry them where a model is split over devices."""
    padding, given = torch.ones(2, 4, dtype=torch.bool), torch.ones(1, 1, 4, 4, dtype=torch.bool)
    for fields in ({"key_padding_mask": padding}, {"causal_offset": torch.tensor(3)}, {"given": given}):
        mask = AttentionMask(4, 4, torch.device("cpu"), **fields)
        moved = send_to_device({"attention_mask": mask}, torch.device("meta"))["attention_mask"]
        (name,) = fields
        assert getattr(moved, name).device == moved.dense.device == moved.device == torch.device("meta")
        assert mask.to("cpu") is mask


@pytest.mark.parametrize("preset", ["softmax", "reluformer"])
def test_mask_of_four_dimensions_and_embeddings_as_input(preset):
    model, batch = build_model(preset), draw_pairs()
    expected = logits_of(model)
    ready = batch["attention_mask"][:, None, None, :]
    for mask in (ready, ready.bool()):
        torch.testing.assert_close(logits_of(model, attention_mask=mask), expected)
    embeddings = model.get_input_embeddings()(batch["input_ids"])
    torch.testing.assert_close(logits_of(model, input_ids=None, inputs_embeds=embeddings), expected)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30], ids=str)
@pytest.mark.parametrize("backend", ["eager", "fused"])
@all_presets
def test_states_of_padding_reach_no_real_token(preset, backend, value):
    model, batch = build_model(preset), draw_pairs()
    model.set_attn_implementation(backend)
    mask, target = batch["attention_mask"], batch["labels"].clamp_min(0)
    target_mask = batch["labels"].ne(-100).long()
    source = {"inputs_embeds": model.get_input_embeddings()(batch["input_ids"]), "decoder_input_ids": target}
    encoded = {"encoder_outputs": model.get_encoder()(batch["input_ids"], mask)[:1], "decoder_input_ids": target}
    decoded = {
        "input_ids": batch["input_ids"],
        "decoder_inputs_embeds": model.get_decoder().embed_tokens(target),
        "decoder_attention_mask": target_mask,
    }
    for inputs, name, padding in (
        (source, "inputs_embeds", mask == 0),
        (encoded, "encoder_outputs", mask == 0),
        (decoded, "decoder_inputs_embeds", target_mask == 0),
    ):
        expected = model(attention_mask=mask, **inputs).logits
        states = inputs[name][0] if name == "encoder_outputs" else inputs[name]
        states = states.detach().masked_fill(padding[..., None], value)
        given = {**inputs, name: (states,) if name == "encoder_outputs" else states}
        is_real = target_mask.bool() if name == "decoder_inputs_embeds" else torch.ones_like(target_mask).bool()
        assert torch.equal(model(attention_mask=mask, **given).logits[is_real], expected[is_real]), name


def test_labels_of_mbart_begin_with_their_last_token():
    model = build_model("softmax", label_shift="last_label")
    pad = model.config.pad_token_id
    labels = torch.tensor([[5, 6, 7, 2, -100, -100], [8, 2, -100, -100, -100, -100], [9, 5, 6, 7, 8, 2]])
    shifted = model.prepare_decoder_input_ids_from_labels(labels)
    torch.testing.assert_close(shifted, shift_tokens_right(labels, pad))
    torch.testing.assert_close(
        model.prepare_decoder_input_ids_from_labels(labels.masked_fill(labels == -100, pad)), shifted
    )


def test_a_ready_mask_may_tell_queries_apart_in_the_encoder_alone():
    model = build_model("reluformer").eval()
    batch = draw_pairs()
    ids, length = batch["input_ids"], batch["input_ids"].shape[1]
    causal = torch.ones(len(ids), 1, length, length, dtype=torch.bool).tril()
    states = model.model.encoder(input_ids=ids, attention_mask=causal).last_hidden_state
    changed = model.model.encoder(input_ids=ids.roll(1, 0), attention_mask=causal).last_hidden_state
    first = model.model.encoder(input_ids=ids[:, :1], attention_mask=causal[:, :, :1, :1]).last_hidden_state
    torch.testing.assert_close(states[:, :1], first)
    assert not torch.allclose(states, changed)
    with pytest.raises(ValueError, match="cross-attention"):
        model(input_ids=ids, attention_mask=causal, labels=batch["labels"])


@pytest.mark.parametrize("preset", ["softmax", "reluformer", "rela-g"])
def test_texts_of_a_packed_source_are_encoded_as_each_alone(preset):
    encoder = build_model(preset).eval().model.encoder
    texts = torch.randint(5, 20, (11,)).split((4, 1, 6))
    positions = torch.cat([torch.arange(len(text)) for text in texts])[None]
    packed = encoder(input_ids=torch.cat(texts)[None], position_ids=positions).last_hidden_state
    alone = torch.cat([encoder(input_ids=text[None]).last_hidden_state for text in texts], dim=1)
    torch.testing.assert_close(packed, alone)
