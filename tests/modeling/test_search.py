"""Greedy and beam search give the tokens of transformers' own."""

import copy
import functools
import logging
import warnings
from unittest import mock

import pytest
import torch
from peft import PrefixTuningConfig, get_peft_model
from transformers import GenerationMixin, LogitsProcessor, LogitsProcessorList

from builders.models import all_presets, build_model
from builders.searches import END, VOCABULARY, draw_sources, trained_like
from reluformers import ReLUFormerForConditionalGeneration
from reluformers.modeling.modeling_seq2seq import CACHE_NAME
from reluformers.translation.decoding import wu_length_penalty
from reluformers.translation.tokenization import train_tokenizer
from reluformers_kernels import decoder
from reluformers_kernels.compiled import native

COMPILED = native is not None and native.is_available()
NOT_COMPILED = {"bad_words_ids", "no_repeat_ngram_size"}  # which look at all tokens of a row


def both(model, batch, **options):
    """What is generated here and by transformers, and how often by compiled code."""
    stock = GenerationMixin._beam_search if options.get("num_beams", 1) > 1 else GenerationMixin._sample
    taken = mock.Mock(side_effect=decoder.Translator.search)
    with mock.patch.object(decoder.Translator, "search", lambda *arguments: taken(*arguments)):
        ours = model.generate(**batch, **options)
    return ours, model.generate(**batch, **options, custom_generate=stock), taken.call_count


def check_same(model, batch, **options):
    ours, theirs, taken = both(model, batch, **options)
    assert taken == (COMPILED and not NOT_COMPILED & options.keys())
    assert torch.equal(ours, theirs), (options, ours, theirs)
    return ours


@pytest.mark.parametrize("beams", [1, 2, 5])
@all_presets
def test_the_tokens_are_those_of_transformers(preset, beams):
    model = trained_like(preset)
    lengths = set()
    for seed in range(3):
        tokens = check_same(model, draw_sources(seed=seed), num_beams=beams, max_new_tokens=12)
        lengths |= set((tokens != tokens[:, -1:]).sum(1).tolist())
    assert len(lengths) > 1


OPTIONS = [
    {"early_stopping": True},
    {"early_stopping": "never", "length_penalty": 2.0},
    {"length_penalty": -1.0},
    {"length_penalty": 0.0, "num_return_sequences": 4},
    {"min_new_tokens": 5},
    {"min_length": 4, "bad_words_ids": [[7], [8, 9]], "forced_eos_token_id": 2},
    {"no_repeat_ngram_size": 2, "suppress_tokens": [5, 6]},
    {"forced_bos_token_id": 11},
    {"eos_token_id": None, "max_new_tokens": 6},
    {"eos_token_id": [2, *range(9, 18)]},
    {"decoder_input_ids": torch.tensor([[1, 4, 5]] * 7)},
    {"max_new_tokens": 1},
]


@pytest.mark.parametrize("beams", [1, 4])
@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(options))
def test_options_mean_the_same(options, beams):
    model = trained_like("rela-g")
    only_for_beams = {"early_stopping", "length_penalty", "num_return_sequences"}
    if beams == 1 and only_for_beams & options.keys():
        pytest.skip("has no meaning in greedy search")
    for seed in range(3):
        check_same(model, draw_sources(seed=seed), **{"num_beams": beams, "max_new_tokens": 14, **options})


def test_of_equal_scores_the_first_is_taken():
    model = trained_like("relu")
    with torch.no_grad():
        model.lm_head.weight.zero_()
        model.lm_head.bias.copy_(torch.arange(VOCABULARY).eq(END) * -9.0)
        model.lm_head.bias[[30, 17, 5, 9]] = 1.0
    tokens = check_same(model, draw_sources(), max_new_tokens=1)
    assert (tokens[:, 1] == 5).all()


@pytest.mark.parametrize("beams", [1, 3])
def test_a_cached_prefix_is_heard(beams):
    """The cache is of other tokens than the prompt says, so that it alone knows them."""
    model, batch = trained_like("reluformer"), draw_sources(4)
    with torch.no_grad():
        prefix = model(**batch, decoder_input_ids=torch.full((4, 3), 9), use_cache=True)[CACHE_NAME]
    prefix.batch_repeat_interleave(beams)
    options = {"num_beams": beams, "max_new_tokens": 6, "eos_token_id": None}
    options["decoder_input_ids"] = torch.tensor([[1, 5, 6, 7]] * 4)
    stock = GenerationMixin._beam_search if beams > 1 else GenerationMixin._sample
    found, wanted = (
        model.generate(**batch, **options, **{CACHE_NAME: copy.deepcopy(prefix)}, custom_generate=way)
        for way in (None, stock)
    )
    assert torch.equal(found, wanted)
    assert not torch.equal(found, model.generate(**batch, **options))


def test_the_penalty_of_the_papers_is_heard():
    model = wu_length_penalty(trained_like("relu"))
    check_same(model, draw_sources(), num_beams=4, max_new_tokens=14, length_penalty=0.6, early_stopping="never")


def test_without_a_mask_and_after_many_tokens():
    model = trained_like("qknorm", max_position_embeddings=200)
    batch = {"input_ids": draw_sources()["input_ids"][:2]}
    for beams in (1, 3):
        check_same(model, batch, num_beams=beams, max_new_tokens=150, eos_token_id=None)


@pytest.mark.parametrize("beams", [1, 3])
def test_memory_is_bounded_by_the_positions(beams):
    """`max_new_tokens` without an end in sight asks for as many columns as there are positions."""
    model, batch = trained_like(), draw_sources(2)
    with pytest.raises(ValueError, match="max_position_embeddings is 32"):
        model.generate(**batch, num_beams=beams, max_new_tokens=10**12, eos_token_id=None)
    with torch.no_grad():
        model.lm_head.bias[END] = 1e4
    assert model.generate(**batch, num_beams=beams, max_new_tokens=10**12).tolist() == [[1, END]] * 2


class Unknown(LogitsProcessor):
    def __call__(self, input_ids, scores):
        return scores


@pytest.mark.parametrize(
    "options",
    [
        {"do_sample": True},
        {"return_dict_in_generate": True, "output_scores": True},
        {"logits_processor": LogitsProcessorList([Unknown()])},
        {"repetition_penalty": 1.5},
        {"max_time": 60.0},
        {"use_cache": False},
        {"cache_implementation": "static"},
        {"decoder_attention_mask": torch.ones(7, 1, dtype=torch.long)},
    ],
    ids=lambda options: "-".join(options),
)
@pytest.mark.parametrize("beams", [1, 3])
def test_what_is_not_known_goes_to_transformers(options, beams):
    model = trained_like()
    with mock.patch.object(decoder.Translator, "search", side_effect=AssertionError):
        model.generate(**draw_sources(), num_beams=beams, max_new_tokens=4, **options)


def test_a_prompt_in_chunks_is_refused():
    with pytest.raises(ValueError, match="prefill_chunk_size"):
        trained_like().generate(**draw_sources(), max_new_tokens=4, prefill_chunk_size=2)


@pytest.mark.parametrize("beams", [1, 3])
def test_prefix_tuning_is_heard(beams):
    model, batch = trained_like(), draw_sources(4)
    plain = model.generate(**batch, num_beams=beams, max_new_tokens=6)
    layers = {"num_layers": 3, "num_attention_heads": 4}
    tuned = get_peft_model(
        model,
        PrefixTuningConfig(task_type="SEQ_2_SEQ_LM", num_virtual_tokens=3, **layers),
        autocast_adapter_dtype=False,
    ).eval()
    generator = torch.Generator().manual_seed(0)
    for part in tuned.prompt_encoder.parameters():
        part.data.normal_(std=3.0, generator=generator)
    found, wanted, taken = both(tuned, batch, num_beams=beams, max_new_tokens=6, eos_token_id=None)
    assert torch.equal(found, wanted)
    assert not torch.equal(found, plain)
    assert not taken


class Shouting(ReLUFormerForConditionalGeneration):
    """Repeats the last token, whatever it computed."""

    def prepare_inputs_for_generation(self, input_ids, *args, **kwargs):
        inputs = super().prepare_inputs_for_generation(input_ids, *args, **kwargs)
        return {**inputs, "decoder_input_ids": torch.full_like(inputs["decoder_input_ids"], 7)}


@pytest.mark.parametrize("beams", [1, 3])
def test_methods_that_a_user_replaces_are_called(beams):
    model, batch = trained_like("reluformer"), draw_sources(4)
    options = {"num_beams": beams, "max_new_tokens": 5, "eos_token_id": None}
    before = model.generate(**batch, **options)
    subclass = copy.deepcopy(model)
    subclass.__class__ = Shouting
    on_the_object = copy.deepcopy(model)
    on_the_object.prepare_inputs_for_generation = functools.partial(Shouting.prepare_inputs_for_generation, subclass)
    found = [one.generate(**batch, **options) for one in (subclass, on_the_object)]
    assert torch.equal(*found)
    assert not torch.equal(found[0], before)
    forward = model.forward

    def always_nine(**inputs):
        output = forward(**inputs)
        output.logits = torch.zeros_like(output.logits).index_fill(-1, torch.tensor(9), 50.0)
        return output

    model.forward = always_nine
    assert (model.generate(**batch, **options)[:, 1:] == 9).all()


@pytest.mark.parametrize("beams", [1, 3])
def test_a_tokenizer_stops_at_strings_and_changes_nothing_else(beams):
    model, batch = trained_like(), draw_sources(3)
    tokenizer = train_tokenizer(["abcdef ghij"] * 4, vocab_size=VOCABULARY, min_frequency=1)
    options = {"num_beams": beams, "max_new_tokens": 8, "eos_token_id": None}
    wanted = check_same(model, batch, **options)
    assert torch.equal(model.generate(**batch, **options, tokenizer=tokenizer), wanted)
    word = tokenizer.decode(wanted[0, 3])
    stopped = model.generate(**batch, **options, tokenizer=tokenizer, stop_strings=[word])
    assert word in tokenizer.decode(stopped[0])
    assert stopped.shape[1] <= wanted.shape[1]


def test_a_streamer_gets_every_token():
    streamer = mock.Mock()
    tokens = build_model("relu").generate(torch.tensor([[5, 6, END]]), max_new_tokens=4, streamer=streamer)
    assert torch.cat([call.args[0].flatten() for call in streamer.put.call_args_list]).tolist() == tokens[0].tolist()


@pytest.mark.parametrize("saved", [{}, {"max_length": 30}, {"max_new_tokens": 30}])
@pytest.mark.parametrize("asked", [{"max_new_tokens": 4}, {"max_length": 5}])
@pytest.mark.parametrize("options", [{}, {"num_beams": 3}, {"do_sample": True}])
def test_the_length_that_is_asked_for_holds_without_a_warning(saved, asked, options, caplog):
    model = build_model("relu")
    model.generation_config.update(**saved)
    model.generation_config.eos_token_id = None
    with caplog.at_level(logging.WARNING), warnings.catch_warnings():
        warnings.simplefilter("error")
        tokens = model.generate(**draw_sources(), eos_token_id=None, **asked, **options)
    assert tokens.shape[1] == 5
    assert not [message for message in caplog.messages if "max_" in message]
