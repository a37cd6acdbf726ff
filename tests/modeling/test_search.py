"""Translation by compiled code: the tokens of transformers' own searches, and what is left to those."""

import copy
import dataclasses
import inspect
import logging
import threading
import warnings
from unittest import mock

import pytest
import torch
from peft import PrefixTuningConfig, get_peft_model
from transformers import GenerationMixin, LogitsProcessor, LogitsProcessorList

from builders.models import build_model
from reluformers import quantize_int8
from reluformers.configuration.configuration_attention import ACTIVATIONS, AttentionConfig
from reluformers.configuration.configuration_seq2seq import Seq2SeqTransformerConfig
from reluformers.modeling.modeling_seq2seq import CACHE_NAME
from reluformers.saved_models import set_precision
from reluformers.translation.decoding import wu_length_penalty
from reluformers.translation.tokenization import train_tokenizer
from reluformers_kernels import decoder
from reluformers_kernels.compiled import native
from reluformers_kernels.search import explain_search

VOCABULARY, END = 40, 2
BUILT = native.usable_instruction_sets() if native is not None else []
needs_code = pytest.mark.skipif(not BUILT, reason="needs compiled code for this processor")
greedy_and_beams = pytest.mark.parametrize("beams", [1, 3])
SEARCH = decoder.Translator.search

ATTENTIONS = [
    *({"activation": name} for name in ACTIVATIONS if not BUILT or name in native.decoder.ACTIVATIONS),
    {"learned_scale": True},
    {"score": "cosine", "scale_form": "log_length"},
    {"score": "cosine", "learned_scale": True, "scale_form": "log_length"},
    {"query_key_norm": "layer_norm", "score": "cosine"},
    {"value_norm": "l2"},
    {"activation": "relu", "learned_length_exponent": True, "length_exponent": 0.5},
    {"activation": "softmax1", "threshold": 0.3, "learned_threshold": True, "threshold_per_head": True},
    {"activation": "sigmoid", "threshold": 1.0, "threshold_form": "log_length"},
    {"activation": "relu2", "threshold": 0.1, "threshold_form": "sqrt_log_length", "normalizer": "sum"},
    {"exclusive_output": True, "output_norm": "rms_norm"},
    *({"activation": "relu", "output_norm": name} for name in ("gated_rms_norm", "layer_norm", "gated_layer_norm")),
    *({"output_gate": name} for name in ("linear", "silu", "sigmoid")),
    {"length_coefficient": 2.0, "length_exponent": -0.5},
]
FIELDS = [
    *({"attention": fields} for fields in ATTENTIONS),
    *({"activation_function": name} for name in ("gelu", "gelu_pytorch_tanh", "silu", "glu", "bilinear", "reglu")),
    *({"activation_function": name} for name in ("drelu", "geglu")),
    {"activation_function": "softmax", "feed_forward_temperature": 2.0, "feed_forward_norm": "layer_norm"},
    {"activation_function": "swish", "swish_beta": 1.7},
    {"activation_function": "swiglu", "learned_swish_beta": True},
    *({"norm_type": name, "norm_position": "pre"} for name in ("layer_norm", "rms_norm", "scale_norm", "none")),
    *({"norm_type": name, "norm_position": "post"} for name in ("rms_norm", "scale_norm")),
    {"embedding_norm": "fix_norm"},
    {"embedding_norm": "layer_norm", "scale_embedding": False},
    {"position_embedding_type": "learned", "position_offset": 2},
    {"position_embedding_type": "sinusoidal_marian", "ffn_bias": False, "attention_bias": False},
    {"embedding_bias": True, "tying": "none", "attention_output_bias": False},
    {"decoder_vocab_size": 49, "tying": "decoder"},
]
SIZES = [
    {},
    {"d_model": 30, "encoder_attention_heads": 3, "decoder_attention_heads": 5, "encoder_ffn_dim": 33},
    {"d_model": 96, "encoder_attention_heads": 1, "decoder_attention_heads": 2, "decoder_ffn_dim": 130},
]


def trained_like(preset="relu", **fields):
    """A model that ends every fifth prefix, so some sentences soon and others late."""
    model = build_model(preset, vocab_size=VOCABULARY, output_bias=True, **fields)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
        prefixes = torch.randint(3, VOCABULARY, (64, 9), generator=generator)
        logits = model(**draw_sources(64), decoder_input_ids=prefixes).logits.flatten(0, 1)
        end, others = logits[:, END], logits.index_fill(1, torch.tensor(END), -torch.inf).amax(1)
        model.lm_head.bias[END] += (others - end).quantile(0.2)
    return model


def draw_sources(rows=7, seed=0):
    """Sentences of two to nine tokens, padded on the right."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 9, (rows,), generator=generator)
    input_ids = torch.randint(3, VOCABULARY, (rows, 9), generator=generator)
    mask = torch.arange(9) <= lengths[:, None]
    return {"input_ids": input_ids.masked_fill(~mask, 0), "attention_mask": mask.long()}


def padded_sources(seed=0, rows=5):
    """Some are padded on the right, one on the left, and one in between."""
    batch = draw_sources(rows, seed)
    batch["attention_mask"][1] = torch.tensor([0, 0, 1, 1, 0, 1, 1, 1, 1])
    batch["attention_mask"][2] = torch.tensor([0, 0, 0, 1, 1, 1, 1, 1, 1])
    return batch


def by_transformers(model, batch, **options):
    """Tokens by PyTorch and the searches of transformers."""
    with mock.patch.object(decoder.Translator, "of", side_effect=decoder.Unknown("asked for")):
        return model.generate(**batch, **options)


def by_compiled_code(model, batch, **options):
    """Tokens by compiled code, which must be what searches."""
    with mock.patch.object(decoder.Translator, "search", autospec=True, side_effect=SEARCH) as search:
        tokens = model.generate(**batch, **options)
    assert search.call_count == 1
    return tokens


def check_same(model, batch, exact=None, **options):
    """Compare two calls, of which the second repeats what the first has prepared; returns the tokens."""
    expected = by_transformers(exact or model, batch, **options)
    for _ in range(2):
        assert torch.equal(by_compiled_code(model, batch, **options), expected)
    return expected


def check_same_outcome(model, batch, **options):
    """Compare tokens, or the kind of an error."""
    outcomes = []
    for search in (by_transformers, lambda model, batch, **options: model.generate(**batch, **options)):
        try:
            outcomes.append(search(model, batch, **options).tolist())
        except Exception as error:
            outcomes.append(type(error))
    assert outcomes[0] == outcomes[1]


def check_left_to_transformers(model, batch, **options):
    with mock.patch.object(decoder.Translator, "search", side_effect=AssertionError):
        return model.generate(**batch, **options)


# transformers 5.17 takes the vocabulary of the sources for that of the targets, and ends in an error of shapes
BEAMS_ARE_OF_SOURCES = "vocab_size" in inspect.signature(GenerationMixin._get_top_k_continuations).parameters


@needs_code
@pytest.mark.parametrize("number", range(len(FIELDS)), ids=lambda number: str(FIELDS[number])[:60])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_every_formula_is_that_of_pytorch(number, dtype):
    """In bfloat16 the tokens are those that PyTorch gives in float32 for the same rounded weights."""
    model = trained_like("softmax", **SIZES[number % len(SIZES)], **FIELDS[number]).to(dtype)
    exact = copy.deepcopy(model).float()
    for beams in (1, 3):
        if beams == 1 or not (BEAMS_ARE_OF_SOURCES and "decoder_vocab_size" in FIELDS[number]):
            check_same(model, padded_sources(number), exact, num_beams=beams, max_new_tokens=8)


@needs_code
@pytest.mark.parametrize("name", BUILT)
def test_every_instruction_set(name, monkeypatch):
    monkeypatch.setattr(native, "instruction_set", lambda: name)
    options = {"num_beams": 4, "max_new_tokens": 8, "num_return_sequences": 2}
    for size in SIZES:
        model, batch = trained_like("rela-g", **size, activation_function="swiglu"), padded_sources(3)
        half = copy.deepcopy(model).bfloat16()
        check_same(model, batch, **options)
        check_same(half, batch, copy.deepcopy(half).float(), **options)
        by_compiled_code(quantize_int8(model), batch, **options)


@needs_code
@pytest.mark.parametrize(("sentences", "beams"), [(1, 2), (1, 8), (2, 1), (17, 3), (64, 1), (64, 8)])
def test_any_number_of_sentences_and_threads(sentences, beams, threads):
    model, batch = trained_like("reluformer"), draw_sources(sentences, seed=beams)
    expected = by_transformers(model, batch, num_beams=beams, max_new_tokens=20)
    for number in (1, 1, 3, 3):
        threads(number)
        assert torch.equal(by_compiled_code(model, batch, num_beams=beams, max_new_tokens=20), expected)


@needs_code
def test_several_python_threads_at_once():
    model, wrong = trained_like("rela-g"), []
    batches = [draw_sources(6, seed=seed) for seed in range(4)]
    expected = [model.generate(**batch, num_beams=3, max_new_tokens=9) for batch in batches]

    def translate(number):
        for _ in range(10):
            found = model.generate(**batches[number], num_beams=3, max_new_tokens=9)
            if not torch.equal(found, expected[number]):
                wrong.append(number)

    workers = [threading.Thread(target=translate, args=[number]) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


OPTIONS = [
    {"early_stopping": True},
    {"early_stopping": "never", "length_penalty": 2.0},
    {"length_penalty": -1.0},
    {"length_penalty": 0.0, "num_return_sequences": 4},
    {"min_new_tokens": 5},
    {"min_length": 4, "suppress_tokens": [5, 6]},
    {"forced_eos_token_id": 2},
    {"forced_bos_token_id": 11},
    {"eos_token_id": None, "max_new_tokens": 6},
    {"eos_token_id": [2, *range(9, 18)]},
    {"decoder_input_ids": torch.tensor([[1, 4, 5]] * 7)},
    {"max_new_tokens": 1},
]
ONLY_FOR_BEAMS = {"early_stopping", "length_penalty", "num_return_sequences"}


@needs_code
@pytest.mark.parametrize(
    ("options", "beams"),
    [(options, beams) for options in OPTIONS for beams in (1, 4) if beams > 1 or not ONLY_FOR_BEAMS & options.keys()],
    ids=str,
)
def test_options_mean_the_same(options, beams):
    model = trained_like("rela-g")
    for seed in range(3):
        check_same(model, draw_sources(seed=seed), **{"num_beams": beams, "max_new_tokens": 14, **options})


@needs_code
def test_saved_options_may_change_between_two_calls():
    model, batch = trained_like("reluformer"), draw_sources(8)
    before = check_same(model, batch, max_new_tokens=8)
    model.generation_config.suppress_tokens = [int(before[0, 1])]
    assert not torch.equal(check_same(model, batch, max_new_tokens=8), before)


@needs_code
def test_of_equal_scores_the_first_is_taken():
    model = trained_like("relu")
    with torch.no_grad():
        model.lm_head.weight.zero_()
        model.lm_head.bias.copy_(torch.arange(VOCABULARY).eq(END) * -9.0)
        model.lm_head.bias[[30, 17, 5, 9]] = 1.0
    assert (check_same(model, draw_sources(), max_new_tokens=1)[:, 1] == 5).all()


@needs_code
def test_the_penalty_of_the_papers_is_heard():
    model = wu_length_penalty(trained_like("relu"))
    check_same(model, draw_sources(), num_beams=4, max_new_tokens=14, length_penalty=0.6, early_stopping="never")


@needs_code
@greedy_and_beams
def test_without_a_mask_and_after_many_tokens(beams):
    model = trained_like("qknorm", max_position_embeddings=200)
    batch = {"input_ids": draw_sources()["input_ids"][:2]}
    check_same(model, batch, num_beams=beams, max_new_tokens=150, eos_token_id=None)


@needs_code
def test_states_of_the_encoder_may_be_given_beside_the_source_or_alone():
    model, batch = trained_like("reluformer"), draw_sources(3)
    expected = by_transformers(model, batch, max_new_tokens=6)
    with torch.no_grad():
        states, mask = model.get_encoder()(**batch), {"attention_mask": batch["attention_mask"]}
        for given, inputs in ((states, batch), (states, batch), (states.to_tuple(), mask)):
            assert torch.equal(model.generate(**inputs, encoder_outputs=given, max_new_tokens=6), expected)


@needs_code
@pytest.mark.parametrize("name", BUILT)
def test_int8_products_fit_where_they_are_summed(name, monkeypatch):
    """Two products of a row's largest numbers and the largest weights are more than 16 bits hold, if rows have 8."""
    monkeypatch.setattr(native, "instruction_set", lambda: name)
    model, batch = trained_like("reluformer", d_model=64, encoder_ffn_dim=96), draw_sources(16)
    for layer in model.modules():
        if type(layer) is torch.nn.Linear:
            layer.weight.data = layer.weight.data.sign() * 0.1  # integers of −128 and 127 alone
    with torch.no_grad():
        exact, is_real = model.get_encoder()(**batch)[0], batch["attention_mask"].bool()
        states = decoder.Translator.of(quantize_int8(model)).encode(batch["input_ids"], is_real)
    assert (states - exact)[is_real].norm() < 0.02 * exact[is_real].norm()


@needs_code
@pytest.mark.parametrize("preset", ["reluformer", "rela-g", "qknorm"])
def test_int8_is_near_float32(preset):
    """At least as near as PyTorch's int8, which has 7 bits for the rows."""
    model = trained_like(preset, d_model=64, encoder_ffn_dim=96)
    packed, same = set_precision(copy.deepcopy(model), "int8"), {by_transformers: 0, by_compiled_code: 0}
    for seed in range(8):
        batch, options = draw_sources(16, seed=seed), {"max_new_tokens": 8, "eos_token_id": None}
        exact = by_transformers(model, batch, **options)
        for way in same:
            same[way] += int((way(packed, batch, **options)[:, 1] == exact[:, 1]).sum())
    assert same[by_compiled_code] > 0.8 * 8 * 16
    assert same[by_compiled_code] > 0.95 * same[by_transformers]


def changed_in_place(model):
    with torch.no_grad():
        model.model.decoder.layers[0].mlp.fc1.weight.mul_(-1)


def with_other_memory(model):
    for parameter in model.parameters():
        parameter.data = parameter.data * -1


def with_another_module(model):
    layer = model.model.decoder.layers[1].cross_attn
    layer.q_proj, layer.k_proj = layer.k_proj, layer.q_proj


def with_another_field(model):
    model.config.scale_embedding = not model.config.scale_embedding


def with_unit_rows_changed(model):
    with torch.no_grad():
        model.lm_head.weight.copy_(model.lm_head.weight.roll(1, 0))


def with_another_eps(model):
    model.model.decoder.layers[0].mlp_norm.eps = 10.0


CHANGES = [changed_in_place, with_other_memory, with_another_module, with_another_field, with_unit_rows_changed]


@needs_code
@pytest.mark.parametrize("change", [*CHANGES, with_another_eps], ids=lambda change: change.__name__)
def test_weights_and_modules_may_change_between_two_calls(change):
    model, batch = trained_like("qknorm", tying="none"), draw_sources(8)
    options = {"num_beams": 2, "max_new_tokens": 8}
    with torch.inference_mode():
        before = by_compiled_code(model, batch, **options)
    assert torch.equal(by_compiled_code(model, batch, **options), before)
    change(model)
    assert not torch.equal(check_same(model, batch, **options), before)


def with_hook(model):
    model.model.encoder.layers[0].mlp.register_forward_pre_hook(lambda module, inputs: (-inputs[0],))


def with_forward_of_its_own(model):
    mlp = model.model.decoder.layers[0].mlp
    mlp.forward = lambda states: -type(mlp).forward(mlp, states)


def with_parametrization(model):
    layer = model.model.decoder.layers[0].mlp.fc1
    torch.nn.utils.parametrize.register_parametrization(layer, "weight", torch.nn.Hardtanh(-0.1, 0.1))


def with_subclass(model):
    class Other(type(model.model.decoder.layers[0].mlp)):
        def forward(self, states):
            return -super().forward(states)

    model.model.decoder.layers[0].mlp.__class__ = Other


def in_another_dtype(model):
    model.to(torch.float16)


def by_columns(model):
    weight = model.model.decoder.layers[0].mlp.fc1.weight
    weight.data = weight.data.t().contiguous().t()


def pruned(model):
    mlp = model.model.decoder.layers[0].mlp
    for layer, name, rows in ((mlp.fc1, "weight", 0), (mlp.fc1, "bias", 0), (mlp.fc2, "weight", 1)):
        values = getattr(layer, name).data
        setattr(layer, name, torch.nn.Parameter(values.narrow(rows, 0, 5).contiguous()))


def with_weight_as_attribute(model):
    layer = model.model.decoder.layers[0].mlp.fc1
    weight = -layer.weight.data
    del layer.weight
    layer.weight = weight


def with_method_of_its_own(model):
    site = model.model.decoder.layers[0].self_attn
    site.attend = lambda *arguments, **options: type(site).attend(site, *arguments, **options)


def with_shortened_rows(model):
    model.model.encoder.embed_tokens.max_norm = 0.01


def with_processors_of_its_own(model):
    model._get_logits_processor = lambda *arguments, **options: GenerationMixin._get_logits_processor(
        model, *arguments, **options
    )


def with_inputs_of_its_own(model):
    prepare = model.prepare_inputs_for_generation

    def prepare_sevens(*arguments, **options):
        inputs = prepare(*arguments, **options)
        return {**inputs, "decoder_input_ids": torch.full_like(inputs["decoder_input_ids"], 7)}

    model.prepare_inputs_for_generation = prepare_sevens


OTHERS = [
    *(with_hook, with_forward_of_its_own, with_parametrization, with_subclass, in_another_dtype, by_columns, pruned),
    *(with_weight_as_attribute, with_method_of_its_own, with_shortened_rows, with_processors_of_its_own),
    with_inputs_of_its_own,
]
CHANGE_NOTHING = (in_another_dtype, by_columns, with_method_of_its_own, with_processors_of_its_own)


@greedy_and_beams
@pytest.mark.parametrize("change", OTHERS, ids=lambda change: change.__name__)
def test_what_is_not_the_librarys_own_goes_on_in_pytorch(change, beams):
    model, batch, options = trained_like("reluformer"), draw_sources(8), {"num_beams": beams, "max_new_tokens": 8}
    for _ in range(2):
        before = model.generate(**batch, **options)
    change(model)
    tokens = check_left_to_transformers(model, batch, **options)
    assert torch.equal(tokens, by_transformers(model, batch, **options))
    assert change in CHANGE_NOTHING or not torch.equal(tokens, before)


@needs_code
def test_settings_that_compiled_code_does_not_see_go_on_in_pytorch():
    model = trained_like("reluformer")
    with torch.no_grad():
        decoder.Translator.of(model)
        hook = torch.nn.modules.module.register_module_forward_hook(lambda module, inputs, output: None)
        with pytest.raises(decoder.Unknown):
            decoder.Translator.of(model)
        hook.remove()
        torch.set_default_dtype(torch.float64)
        try:
            with pytest.raises(decoder.Unknown):
                decoder.Translator.of(model)
        finally:
            torch.set_default_dtype(torch.float32)
        model.config._attn_implementation = "mine"
        with pytest.raises(decoder.Unknown):
            decoder.Translator.of(model)


@needs_code
def test_training_goes_on_in_pytorch():
    model, batch = trained_like("reluformer", dropout=0.5), draw_sources(8)
    kept = by_compiled_code(model, batch, max_new_tokens=8)
    check_left_to_transformers(model.train(), batch, max_new_tokens=8)
    assert torch.equal(by_compiled_code(model.eval(), batch, max_new_tokens=8), kept)


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
        {"bad_words_ids": [[7], [8, 9]]},
        {"min_length": 4, "forced_eos_token_id": 2},  # where one forbids what another forces, their order counts
        {"max_time": 60.0},
        {"use_cache": False},
        {"cache_implementation": "static"},
        {"decoder_attention_mask": torch.ones(7, 1, dtype=torch.long)},
    ],
    ids=lambda options: "-".join(options),
)
@greedy_and_beams
def test_options_that_are_not_known_go_to_transformers(options, beams):
    check_left_to_transformers(trained_like(), draw_sources(), num_beams=beams, max_new_tokens=4, **options)


@greedy_and_beams
def test_a_cached_prefix_is_heard(beams):
    """The cache is of other tokens than the prompt says, so that it alone knows them."""
    model, batch = trained_like("reluformer"), draw_sources(4)
    with torch.no_grad():
        prefix = model(**batch, decoder_input_ids=torch.full((4, 3), 9), use_cache=True)[CACHE_NAME]
    prefix.batch_repeat_interleave(beams)
    options = {"num_beams": beams, "max_new_tokens": 6, "eos_token_id": None}
    options["decoder_input_ids"] = torch.tensor([[1, 5, 6, 7]] * 4)
    found, wanted = (
        way(model, batch, **options, **{CACHE_NAME: copy.deepcopy(prefix)})
        for way in (check_left_to_transformers, by_transformers)
    )
    assert torch.equal(found, wanted)
    assert not torch.equal(found, model.generate(**batch, **options))


@greedy_and_beams
def test_prefix_tuning_is_heard(beams):
    model, batch, options = trained_like(), draw_sources(4), {"num_beams": beams, "max_new_tokens": 6}
    plain = model.generate(**batch, **options)
    config = PrefixTuningConfig(task_type="SEQ_2_SEQ_LM", num_virtual_tokens=3, num_layers=3, num_attention_heads=4)
    tuned = get_peft_model(model, config, autocast_adapter_dtype=False).eval()
    for part in tuned.prompt_encoder.parameters():
        part.data.normal_(std=3.0)
    found = check_left_to_transformers(tuned, batch, **options)
    assert torch.equal(found, by_transformers(tuned, batch, **options))
    assert not torch.equal(found, plain)


@greedy_and_beams
def test_a_tokenizer_stops_at_strings_and_changes_nothing_else(beams):
    model, batch = trained_like(), draw_sources(3)
    tokenizer = train_tokenizer(["abcdef ghij"] * 4, vocab_size=VOCABULARY, min_frequency=1)
    options = {"num_beams": beams, "max_new_tokens": 8, "eos_token_id": None}
    wanted = by_transformers(model, batch, **options)
    assert torch.equal(model.generate(**batch, **options, tokenizer=tokenizer), wanted)
    word = tokenizer.decode(wanted[0, 3])
    stopped = model.generate(**batch, **options, tokenizer=tokenizer, stop_strings=[word])
    assert word in tokenizer.decode(stopped[0])
    assert stopped.shape[1] <= wanted.shape[1]


def test_a_streamer_gets_every_token():
    streamer = mock.Mock()
    tokens = build_model("relu").generate(torch.tensor([[5, 6, END]]), max_new_tokens=4, streamer=streamer)
    assert torch.cat([call.args[0].flatten() for call in streamer.put.call_args_list]).tolist() == tokens[0].tolist()


@greedy_and_beams
def test_memory_is_bounded_by_the_positions(beams):
    """`max_new_tokens` without an end in sight asks for as many columns as there are positions."""
    model, batch = trained_like(), draw_sources(2)
    with pytest.raises(ValueError, match="max_position_embeddings is 32"):
        model.generate(**batch, num_beams=beams, max_new_tokens=10**12, eos_token_id=None)
    with torch.no_grad():
        model.lm_head.bias[END] = 1e4
    assert model.generate(**batch, num_beams=beams, max_new_tokens=10**12).tolist() == [[1, END]] * 2


@pytest.mark.parametrize(
    ("error", "options"),
    [
        (IndexError, {"forced_bos_token_id": 10**6}),
        *((IndexError, {"input_ids": torch.tensor([[5, token]] * 3)}) for token in (-1, VOCABULARY)),
        (ValueError, {"input_ids": torch.full((3, 33), 5)}),  # of 32 positions
        (ValueError, {"prefill_chunk_size": 2}),
        # on the way only the device would know, and ends in an assertion
        (ValueError, {"cache_implementation": "static", "min_length": 40, "max_length": 40, "max_new_tokens": None}),
    ],
)
def test_what_is_not_there_is_refused(error, options):
    """A second call too, which compiled code takes whole."""
    model, batch = trained_like("reluformer"), {"input_ids": torch.full((3, 2), 5)}
    for _ in range(2):
        model.generate(**batch, attention_mask=torch.ones(3, 2).long(), max_new_tokens=4)
    given = {**batch, **options}
    with pytest.raises(error):
        model.generate(**{"max_new_tokens": 4, **given}, attention_mask=torch.ones_like(given["input_ids"]))


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


@dataclasses.dataclass
class WithField(AttentionConfig):
    """A variant with a field that the search was not written for."""

    temperature: float = 2.0


def with_new_field(model):
    site = model.model.decoder.layers[0].cross_attn
    site.attention = WithField(**site.attention.to_dict())


def with_new_config_field(model):
    kind = type(model.config)
    added = dataclasses.make_dataclass("WithConfigField", [("depth_scale", float, 2.0)], bases=(kind,))
    model.config.__class__ = added


def with_new_parameter(model):
    model.model.encoder.layers[0].self_attn.head_gain = torch.nn.Parameter(torch.ones(2))


def with_new_module(model):
    model.model.decoder.layers[1].adapter = torch.nn.Linear(16, 16)


def with_new_number(model):
    model.model.decoder.layers[1].self_attn.window = 3


def with_new_activation(model):
    vars(model.model.encoder.layers[0].self_attn.attention)["activation"] = "shifted_elu"


@needs_code
@pytest.mark.parametrize(
    "change",
    [
        with_new_field,
        with_new_config_field,
        with_new_parameter,
        with_new_module,
        with_new_number,
        with_new_activation,
    ],
    ids=lambda change: change.__name__,
)
def test_names_that_are_not_read_go_on_in_pytorch(change):
    model = trained_like("reluformer")
    with torch.no_grad():
        decoder.Translator.of(model)
        change(model)
        with pytest.raises(decoder.Unknown):
            decoder.Translator.of(model)


@needs_code
def test_every_name_that_is_read_is_there():
    fields = {field.name for field in dataclasses.fields(AttentionConfig)}
    assert fields >= set(decoder._ATTENTION_FIELDS.split())
    own = {field.name for field in dataclasses.fields(Seq2SeqTransformerConfig)}
    assert own >= set(decoder._CONFIG_FIELDS.split())


@needs_code
def test_a_new_field_with_a_neutral_value_is_left_out(monkeypatch):
    monkeypatch.setitem(decoder._NEUTRAL_FIELDS, "temperature", 1.0)
    model = trained_like("reluformer")
    with_new_field(model)
    site = model.model.decoder.layers[0].cross_attn
    with torch.no_grad():
        with pytest.raises(decoder.Unknown, match="temperature"):
            decoder.Translator.of(model)
        site.attention.temperature = 1.0
        decoder.Translator.of(model)


def _layers_of(stack):
    return (decoder.native_decoder.Layer * stack.layer_count).from_address(stack.layers)


def wrong_gain(translator):
    gain = torch.full((16,), 1.02)
    translator.kept.append(gain)
    _layers_of(translator.decoder)[0].own_norm.gain = gain.data_ptr()


def swapped_norms(translator):
    layer = _layers_of(translator.decoder)[1]
    own_norm = type(layer.own_norm).from_buffer_copy(layer.own_norm)
    layer.own_norm = layer.mlp_norm
    layer.mlp_norm = own_norm


def stale_pointer(translator):
    weight = torch.randn(16, 16) / 4
    translator.kept.append(weight)
    _layers_of(translator.decoder)[0].cross.output.weight = weight.data_ptr()


def integer_for_a_float(translator):
    scale = torch.tensor([1])
    translator.kept.append(scale)
    _layers_of(translator.decoder)[0].cross.exponent = scale.data_ptr()


def another_form(translator):
    _layers_of(translator.decoder)[0].cross.scale_form = 1


def wrong_head_count(translator):
    translator.decoder.heads = 1


def another_eps(translator):
    _layers_of(translator.encoder)[0].own_norm.eps = 0.5


FAULTS = [
    wrong_gain,
    swapped_norms,
    stale_pointer,
    integer_for_a_float,
    another_form,
    wrong_head_count,
    another_eps,
]


@needs_code
@greedy_and_beams
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_model_proves_itself_before_it_translates(fault, dtype, beams, caplog, monkeypatch):
    """Whatever the reader gets wrong, PyTorch's states and logits tell, once and for good."""
    model, batch = trained_like("reluformer").to(dtype), draw_sources(3)
    expected = by_transformers(model, batch, num_beams=beams, max_new_tokens=6)
    read = decoder.Translator.__init__

    def read_wrongly(translator, model):
        read(translator, model)
        fault(translator)

    monkeypatch.setattr(decoder.Translator, "__init__", read_wrongly)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert torch.equal(model.generate(**batch, num_beams=beams, max_new_tokens=6), expected)
    assert sum("does not translate with this model" in record.message for record in caplog.records) == 1
    assert "PyTorch" in model.search_fallback


NUMBERS = {
    "scale": 3,
    "threshold": 1,
    "length_exponent": 1,
    "length_coefficient": 2,
    "swish_beta": 2,
    "feed_forward_temperature": 2,
    "norm_eps": 1,
    "output_norm_eps": 1,
}


@needs_code
@pytest.mark.parametrize("name", NUMBERS)
def test_whole_numbers_mean_the_same(name):
    fields = {name: NUMBERS[name]}
    if name in {field.name for field in dataclasses.fields(AttentionConfig)}:
        fields = {"attention": {"activation": "relu", "output_norm": "rms_norm", **fields}}
    kinds = {"swish_beta": "swish", "feed_forward_temperature": "softmax"}
    fields["activation_function"] = kinds.get(name, "relu")
    for beams in (1, 3):
        check_same(trained_like("softmax", **fields), draw_sources(20), num_beams=beams, max_new_tokens=8)


@needs_code
@greedy_and_beams
def test_opus_options_are_searched_by_compiled_code(beams):
    """Generation options of OPUS-MT folders: a forbidden padding token, and log P of what is left."""
    model = trained_like("reluformer")
    options = {"bad_words_ids": [[0], [7]], "renormalize_logits": True, "forced_eos_token_id": END}
    check_same(model, draw_sources(9), num_beams=beams, max_new_tokens=8, **options)
    check_same(model, draw_sources(9), num_beams=beams, max_new_tokens=8, renormalize_logits=True)
    check_left_to_transformers(model, draw_sources(2), num_beams=beams, max_new_tokens=3, bad_words_ids=[[5, 6]])
    assert "NoBadWords" in model.search_fallback


@needs_code
@pytest.mark.parametrize("early_stopping", [None, False, True, "never"])
def test_every_early_stopping_means_the_same(early_stopping):
    model = trained_like("reluformer")
    model.generation_config.early_stopping = early_stopping
    check_same(model, draw_sources(12), num_beams=3, max_new_tokens=8)


@needs_code
@pytest.mark.parametrize("rows", [1, 2, 3])
def test_rows_that_do_not_fit_are_left_to_transformers(rows):
    model, batch = trained_like("reluformer"), draw_sources(4)
    states = model.get_encoder()(**batch)
    mask = {"attention_mask": batch["attention_mask"]}
    for beams in (1, 3):
        for given in (
            {**batch, "decoder_input_ids": torch.ones(rows, 2, dtype=torch.long)},
            {**mask, "encoder_outputs": (states[0][:rows],)},
            {**mask, "encoder_outputs": (states[0],), "decoder_input_ids": torch.ones(rows, 2, dtype=torch.long)},
        ):
            check_same_outcome(model, given, num_beams=beams, max_new_tokens=4)


@needs_code
def test_weights_may_get_other_memory_while_they_are_read():
    """Another thread replaces weights: no call reads memory that is gone, and each gives tokens of one state."""
    model, batch = trained_like("reluformer"), draw_sources(16)
    weights = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    expected = check_same(model, batch, num_beams=3, max_new_tokens=8)
    is_done = threading.Event()

    def replace():
        while not is_done.is_set():
            for name, parameter in model.named_parameters():
                parameter.data = weights[name].clone()

    thread = threading.Thread(target=replace)
    thread.start()
    try:
        for _ in range(15):
            assert torch.equal(model.generate(**batch, num_beams=3, max_new_tokens=8), expected)
    finally:
        is_done.set()
        thread.join()


NOT_FINITE = {
    "lm_head.weight": (7, 3),
    "lm_head.bias": (5,),
    "model.encoder.layers.0.self_attn.q_proj.weight": (1, 1),
    "model.decoder.layers.1.mlp_norm.weight": (2,),
    "model.decoder.layers.0.cross_attn.v_proj.bias": (3,),
}


@needs_code
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("precision", ["float32", "int8"])
@pytest.mark.parametrize("name", NOT_FINITE)
def test_infinity_and_nan_go_to_pytorch(name, precision, value):
    model, batch = trained_like("reluformer", tying="none"), draw_sources(3)
    if precision == "int8":
        if "weight" in name and "norm" not in name:
            pytest.skip("integers are finite")
        model = set_precision(model, "int8")
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    model.generate(**batch, max_new_tokens=2)
    with torch.no_grad():
        tensors[name][NOT_FINITE[name]] = value
    for beams in (1, 3):
        check_same_outcome(model, batch, num_beams=beams, max_new_tokens=6)


@needs_code
@greedy_and_beams
def test_bfloat16_translates_alike_with_and_without_a_mask(beams):
    model = trained_like("reluformer").to(torch.bfloat16)
    ids = torch.randint(3, VOCABULARY, (24, 9), generator=torch.Generator().manual_seed(1))
    with_mask = by_compiled_code(model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, num_beams=beams)
    assert torch.equal(by_compiled_code(model, {"input_ids": ids}, num_beams=beams), with_mask)


def with_head_dim(model):
    model.model.decoder.layers[0].self_attn.head_dim = 4


def with_scale(model):
    model.config.d_model = 64


def with_decoder_config(model):
    model.model.decoder.config = copy.deepcopy(model.config)
    model.model.decoder.config.scale_embedding = not model.config.scale_embedding


@needs_code
@pytest.mark.parametrize("change", [with_head_dim, with_scale, with_decoder_config], ids=lambda c: c.__name__)
def test_a_changed_configuration_is_seen_between_two_equal_calls(change):
    model, batch = trained_like("reluformer", scale_embedding=True), draw_sources(9)
    for _ in range(2):
        model.generate(**batch, max_new_tokens=6)
    change(model)
    expected = by_transformers(model, batch, max_new_tokens=6)
    assert torch.equal(model.generate(**batch, max_new_tokens=6), expected)


@needs_code
def test_the_reason_for_transformers_search_is_said():
    model = trained_like("reluformer")
    assert explain_search(model) is None
    model.generation_config.no_repeat_ngram_size = 3
    assert "NoRepeatNGram" in explain_search(model)


def test_what_crosses_into_compiled_code_is_checked():
    from reluformers_native.decoder import Linear

    shape = {"inputs": 4, "outputs": 3}
    Linear.of(weight=torch.zeros(3, 4), bias=torch.zeros(3), **shape)
    for tensors in (
        {"weight": torch.zeros(3, 4, dtype=torch.long)},
        {"weight": torch.zeros(3, 3)},
        {"weight": torch.zeros(3, 4, device="meta")},
        {"weight": torch.zeros(3, 4), "bias": torch.zeros(3, dtype=torch.float64)},
    ):
        with pytest.raises(ValueError, match="must be"):
            Linear.of(**tensors, **shape)
