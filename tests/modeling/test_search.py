"""Translation by compiled code: the tokens of transformers' own searches, and what is left to those."""

import copy
import dataclasses
import functools
import itertools
import logging
import operator
from typing import get_args
from unittest import mock

import pytest
import torch
from torch.overrides import TorchFunctionMode
from transformers import LogitsProcessor, LogitsProcessorList, MaxLengthCriteria, StoppingCriteriaList

from builders.models import build_model
from reluformers import quantize_int8
from reluformers.configuration.configuration_attention import AttentionConfig
from reluformers.configuration.configuration_base import FeedForwardActivation, NormType
from reluformers.modeling.modeling_seq2seq import CACHE_NAME
from reluformers.saved_models import set_precision
from reluformers.translation.decoding import wu_length_penalty
from reluformers.translation.tokenization import train_tokenizer
from reluformers_kernels import decoder, search
from reluformers_kernels.compiled import native

from .test_attention_matrix import VARIANTS

VOCABULARY = 40
END = 2
BUILT = native.usable_instruction_sets() if native is not None else []
needs_code = pytest.mark.skipif(not BUILT, reason="needs compiled code for this processor")
greedy_and_beams = pytest.mark.parametrize("beams", [1, 3])
SEARCH = decoder.Translator.search


def can_search(fields):
    """Whether compiled code has the activation of an attention, if there is compiled code."""
    return not BUILT or AttentionConfig.parse(fields).activation in native.decoder.ACTIVATIONS


SEARCHED = [fields for fields in VARIANTS.values() if can_search(fields)]
FEED_FORWARDS = [
    {"activation_function": name, "swish_beta": 1.7, "feed_forward_temperature": 2.0}
    for name in get_args(FeedForwardActivation)
]
FEED_FORWARDS += [{"activation_function": "swiglu", "learned_swish_beta": True, "feed_forward_norm": "layer_norm"}]
NORMS = [{"norm_type": name, "norm_position": place} for place in ("pre", "post") for name in get_args(NormType)][:-1]
NORMS += [{"embedding_norm": "fix_norm"}, {"embedding_norm": "layer_norm", "scale_embedding": False}]
EMBEDDINGS = [
    {"position_embedding_type": "learned", "position_offset": 2},
    {"position_embedding_type": "sinusoidal_marian", "ffn_bias": False, "attention_bias": False},
    {"embedding_bias": True, "tying": "none", "attention_output_bias": False},
    {"decoder_vocab_size": 49, "tying": "decoder"},
    {},
]
SIZES = [
    {},
    {"d_model": 30, "encoder_attention_heads": 3, "decoder_attention_heads": 5, "encoder_ffn_dim": 33},
    {"d_model": 96, "encoder_attention_heads": 1, "decoder_attention_heads": 2, "decoder_ffn_dim": 130},
]
PARTS = zip(*map(itertools.cycle, (FEED_FORWARDS, NORMS, EMBEDDINGS, SIZES)), strict=True)
# Each model has an attention of its own at each of its sites, and one of the other parts of every kind.
FORMULAS = list(zip((SEARCHED[number : number + 3] for number in range(0, len(SEARCHED), 3)), PARTS, strict=False))


def trained_like(preset="relu", **fields):
    return copy.deepcopy(build_trained(preset, **fields))


@functools.cache
def build_trained(preset, **fields):
    """A model that ends every fifth prefix, so some sentences soon and others late."""
    model = build_model(preset, vocab_size=VOCABULARY, output_bias=True, **fields)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
        prefixes = torch.randint(3, VOCABULARY, (64, 9), generator=generator)
        logits = model(**draw_sources(64), decoder_input_ids=prefixes).logits.flatten(0, 1)
        end = logits[:, END]
        others = logits.index_fill(1, torch.tensor(END), -torch.inf).amax(1)
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


def check_left_to_transformers(model, batch, **options):
    with mock.patch.object(decoder.Translator, "search", side_effect=AssertionError):
        return model.generate(**batch, **options)


@needs_code
@pytest.mark.parametrize("name", BUILT)
def test_every_instruction_set(name, monkeypatch):
    monkeypatch.setattr(native, "instruction_set", lambda: name)
    options = {"num_beams": 4, "max_new_tokens": 8, "num_return_sequences": 2}
    for size in SIZES[1:]:
        model = trained_like("rela-g", **size, activation_function="swiglu")
        batch = padded_sources(3)
        half = copy.deepcopy(model).bfloat16()
        check_same(model, batch, **options)
        check_same(half, batch, copy.deepcopy(half).float(), **options)
        by_compiled_code(quantize_int8(model), batch, **options)


@needs_code
@pytest.mark.parametrize(("sentences", "beams"), [(1, 2), (1, 8), (2, 1), (17, 3), (64, 1), (64, 8)])
def test_any_number_of_sentences_and_threads(sentences, beams, threads):
    model = trained_like("reluformer")
    batch = draw_sources(sentences, seed=beams)
    expected = by_transformers(model, batch, num_beams=beams, max_new_tokens=20)
    for number in (1, 1, 3, 3):
        threads(number)
        assert torch.equal(by_compiled_code(model, batch, num_beams=beams, max_new_tokens=20), expected)


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
)
def test_options_mean_the_same(options, beams):
    model = trained_like("rela-g")
    check_same(model, draw_sources(), **{"num_beams": beams, "max_new_tokens": 14, **options})


@needs_code
def test_the_penalty_of_the_papers_is_heard():
    model = wu_length_penalty(trained_like("relu"))
    check_same(model, draw_sources(), num_beams=4, max_new_tokens=14, length_penalty=0.6, early_stopping="never")


@needs_code
@greedy_and_beams
def test_without_a_mask_and_after_many_tokens(beams):
    model = trained_like("qknorm", max_position_embeddings=200)
    batch = {"input_ids": draw_sources()["input_ids"][:2]}
    check_same(model, batch, num_beams=beams, max_new_tokens=80, eos_token_id=None)


@needs_code
@pytest.mark.parametrize("name", BUILT)
def test_int8_products_fit_where_they_are_summed(name, monkeypatch):
    """Two products of a row's largest numbers and the largest weights are more than 16 bits hold, if rows have 8."""
    monkeypatch.setattr(native, "instruction_set", lambda: name)
    model = trained_like("reluformer", d_model=64, encoder_ffn_dim=96)
    batch = draw_sources(16)
    for layer in model.modules():
        if type(layer) is torch.nn.Linear:
            layer.weight.data = layer.weight.data.sign() * 0.1  # integers of −128 and 127 alone
    with torch.no_grad():
        exact = model.get_encoder()(**batch)[0]
        is_real = batch["attention_mask"].bool()
        states = decoder.Translator.of(quantize_int8(model)).encode(batch["input_ids"], is_real)
    assert (states - exact)[is_real].norm() < 0.02 * exact[is_real].norm()


def with_other_memory(model):
    for parameter in model.parameters():
        parameter.data = parameter.data * -1


def with_another_module(model):
    layer = model.model.decoder.layers[1].cross_attn
    layer.q_proj, layer.k_proj = layer.k_proj, layer.q_proj


def with_another_field(model):
    model.config.scale_embedding = not model.config.scale_embedding


def with_another_eps(model):
    model.model.decoder.layers[0].mlp_norm.eps = 10.0


def with_hook(model):
    model.model.encoder.layers[0].mlp.register_forward_pre_hook(lambda module, inputs: (-inputs[0],))


def with_forward_of_its_own(model):
    mlp = model.model.decoder.layers[0].mlp
    mlp.forward = lambda states: -type(mlp).forward(mlp, states)


def with_subclass(model):
    class Other(type(model.model.decoder.layers[0].mlp)):
        def forward(self, states):
            return -super().forward(states)

    model.model.decoder.layers[0].mlp.__class__ = Other


def in_another_dtype(model):
    model.to(torch.float16)


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


def with_shortened_rows(model):
    model.model.encoder.embed_tokens.max_norm = 0.01


def with_inputs_of_its_own(model):
    prepare = model.prepare_inputs_for_generation

    def prepare_sevens(*arguments, **options):
        inputs = prepare(*arguments, **options)
        return {**inputs, "decoder_input_ids": torch.full_like(inputs["decoder_input_ids"], 7)}

    model.prepare_inputs_for_generation = prepare_sevens


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


def in_training(model):
    model.train()


def by_columns(model):
    weight = model.model.decoder.layers[0].mlp.fc1.weight
    weight.data = weight.data.t().contiguous().t()


def with_attention_by_name(model):
    model.config._attn_implementation = "mine"


def with_new_activation(model):
    vars(model.model.encoder.layers[0].self_attn.attention)["activation"] = "shifted_elu"


def _layers_of(stack):
    return (decoder.native_decoder.Layer * stack.layer_count).from_address(stack.layers)


def wrong_gain(translator):
    gain = torch.full((16,), 1.02)
    translator.kept.append(gain)
    _layers_of(translator.decoder)[0].own_norm.gain = gain.data_ptr()


def another_form(translator):
    _layers_of(translator.decoder)[0].cross.scale_form = 1


def build_formula(attentions, parts):
    sites = dict(zip(("encoder_attention", "decoder_attention", "cross_attention"), attentions, strict=False))
    return build_trained.__wrapped__("softmax", **functools.reduce(operator.or_, parts, sites))


@needs_code
@pytest.mark.parametrize(("attentions", "parts"), FORMULAS)
def test_every_formula_is_that_of_pytorch(attentions, parts):
    # transformers 5.17 takes the vocabulary of the sources for that of the targets, and ends in an error of shapes
    beams = 1 if "decoder_vocab_size" in parts[2] else 3
    check_same(build_formula(attentions, parts), padded_sources(), num_beams=beams, max_new_tokens=8)


@needs_code
@pytest.mark.parametrize(("attentions", "parts"), FORMULAS)
def test_bfloat16_translates_as_float32_does_with_the_same_rounded_weights(attentions, parts):
    """Each attention at another site than in float32."""
    model = build_formula([*attentions[1:], attentions[0]], parts).to(torch.bfloat16)
    check_same(model, padded_sources(), copy.deepcopy(model).float(), max_new_tokens=8)


@needs_code
@pytest.mark.parametrize("preset", ["reluformer", "rela-g", "qknorm"])
def test_int8_is_near_float32(preset):
    model = trained_like(preset, d_model=64, encoder_ffn_dim=96)
    packed = set_precision(copy.deepcopy(model), "int8")
    batch = draw_sources(128)
    options = {"max_new_tokens": 1, "eos_token_id": None}
    exact = by_transformers(model, batch, **options)
    found, by_pytorch = (way(packed, batch, **options) for way in (by_compiled_code, by_transformers))
    assert (found == exact).sum() > 0.95 * (by_pytorch == exact).sum()  # whose rows have 7 bits
    assert (found == exact)[:, 1].double().mean() > 0.7


class Unknown(LogitsProcessor):
    def __call__(self, input_ids, scores):
        return -scores


def with_processors_of_its_own(model):
    model._get_logits_processor = lambda *arguments, **options: LogitsProcessorList([Unknown()])


def with_another_head(model):
    with torch.no_grad():
        model.lm_head.weight.copy_(model.lm_head.weight.roll(1, 0))


def with_head_of_two_modules(model):
    model.lm_head = torch.nn.Sequential(model.lm_head, torch.nn.Linear(VOCABULARY, VOCABULARY))


def with_other_words_forbidden(model):
    tokens = model.generate(**draw_sources(8), max_new_tokens=8)
    model.generation_config.suppress_tokens = [int(tokens[0, 1])]


def with_another_config_of_a_side(model):
    model.model.decoder.config = copy.deepcopy(model.config)
    model.model.decoder.config.scale_embedding = not model.config.scale_embedding


@needs_code
@pytest.mark.parametrize(
    "change",
    [
        with_other_memory,
        with_another_module,
        with_another_field,
        with_another_head,
        with_head_of_two_modules,
        with_another_eps,
        with_other_words_forbidden,
        with_another_config_of_a_side,
        with_hook,
        with_inputs_of_its_own,
        with_processors_of_its_own,
    ],
)
def test_a_model_may_change_between_two_calls(change):
    model = trained_like("qknorm", tying="none", scale_embedding=True)
    batch = draw_sources(8)
    before = by_compiled_code(model, batch, max_new_tokens=8)
    change(model)
    expected = by_transformers(model, batch, max_new_tokens=8)
    assert torch.equal(model.generate(**batch, max_new_tokens=8), expected)
    assert not torch.equal(expected, before)


@dataclasses.dataclass
class WithField(AttentionConfig):
    """A variant with a field that the search was not written for."""

    temperature: float = 2.0


def with_new_field(model):
    site = model.model.decoder.layers[0].cross_attn
    site.attention = WithField(**site.attention.to_dict())


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
        in_another_dtype,
        with_attention_by_name,
        in_training,
        by_columns,
        with_forward_of_its_own,
        with_subclass,
        pruned,
        with_weight_as_attribute,
        with_shortened_rows,
    ],
)
def test_what_is_not_read_goes_on_in_pytorch(change):
    model = trained_like("reluformer")
    with torch.no_grad():
        decoder.Translator.of(model)
        change(model)
        with pytest.raises(decoder.Unknown):
            decoder.Translator.of(model)


@needs_code
def test_a_new_field_may_be_neutral(monkeypatch):
    monkeypatch.setitem(decoder._NEUTRAL_FIELDS, "temperature", 1.0)
    model = trained_like("reluformer")
    with_new_field(model)
    model.model.decoder.layers[0].cross_attn.attention.temperature = 1.0
    with torch.no_grad():
        decoder.Translator.of(model)


class WithoutNegatives(TorchFunctionMode):
    """Linear maps of another kind, as a simulated quantisation is one."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        output = function(*args, **(kwargs or {}))
        return output.relu() if function is torch.nn.functional.linear else output


@needs_code
def test_a_mode_that_changes_functions_is_heard():
    model = trained_like("reluformer")
    batch = draw_sources()
    plain = by_compiled_code(model, batch, max_new_tokens=8)
    with WithoutNegatives():
        found = model.generate(**batch, max_new_tokens=8)
        assert torch.equal(found, by_transformers(model, batch, max_new_tokens=8))
    assert not torch.equal(found, plain)


@needs_code
def test_settings_that_compiled_code_does_not_see_go_on_in_pytorch():
    model = trained_like("reluformer")
    hook = torch.nn.modules.module.register_module_forward_hook(lambda module, inputs, output: None)
    with torch.no_grad(), pytest.raises(decoder.Unknown):
        decoder.Translator.of(model)
    hook.remove()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.no_grad(), pytest.raises(decoder.Unknown):
            decoder.Translator.of(model)
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(
    "options",
    [
        {"do_sample": True},
        {"do_sample": True, "num_beams": 1},
        {"return_dict_in_generate": True, "output_scores": True},
        {"logits_processor": LogitsProcessorList([Unknown()])},
        {"repetition_penalty": 1.5},
        {"bad_words_ids": [[7], [8, 9]]},
        {"min_length": 4, "forced_eos_token_id": 2},  # where one forbids what another forces, their order counts
        {"forced_eos_token_id": [2, 9]},  # equal scores, whose order is that of torch.topk
        {"max_time": 60.0},
        {"stopping_criteria": StoppingCriteriaList([MaxLengthCriteria(3)])},
        {"use_cache": False},
        {"cache_implementation": "static"},
        {"decoder_attention_mask": torch.ones(7, 1, dtype=torch.long)},
        {"stop_strings": ["cd"], "tokenizer": train_tokenizer(["abcdef"] * 4, VOCABULARY, min_frequency=1)},
        {"streamer": mock.Mock(), "num_beams": 1},
    ],
)
def test_options_that_are_not_known_go_to_transformers(options):
    check_left_to_transformers(trained_like(), draw_sources(), **{"num_beams": 3, "max_new_tokens": 4, **options})


def test_a_given_criterion_takes_the_place_of_the_options():
    model = trained_like()
    criteria = {"stopping_criteria": StoppingCriteriaList([MaxLengthCriteria(9)]), "eos_token_id": None}
    assert model.generate(**draw_sources(), **criteria, max_new_tokens=4).shape[1] == 9


@greedy_and_beams
def test_a_cached_prefix_is_heard(beams):
    """The cache is of other tokens than the prompt says, so that it alone knows them."""
    model = trained_like("reluformer")
    batch = draw_sources(4)
    with torch.no_grad():
        prefix = model(**batch, decoder_input_ids=torch.full((4, 3), 9), use_cache=True)[CACHE_NAME]
    prefix.batch_repeat_interleave(beams)
    options = {"num_beams": beams, "max_new_tokens": 6, "eos_token_id": None}
    options["decoder_input_ids"] = torch.tensor([[1, 5, 6, 7]] * 4)
    plain = model.generate(**batch, **options)
    expected = by_transformers(model, batch, **options, **{CACHE_NAME: copy.deepcopy(prefix)})
    assert torch.equal(check_left_to_transformers(model, batch, **options, **{CACHE_NAME: prefix}), expected)
    assert not torch.equal(expected, plain)


@greedy_and_beams
def test_memory_is_bounded_by_the_positions(beams):
    """`max_new_tokens` without an end in sight asks for as many columns as there are positions."""
    model = trained_like()
    batch = draw_sources(2)
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
    model = trained_like("reluformer")
    batch = {"input_ids": torch.full((3, 2), 5), "max_new_tokens": 4}
    for _ in range(2):
        model.generate(**batch)
    with pytest.raises(error):
        model.generate(**{**batch, **options})


@pytest.mark.parametrize("saved", [{}, {"max_length": 30}, {"max_new_tokens": 30}])
@pytest.mark.parametrize("asked", [{"max_new_tokens": 4}, {"max_length": 5}])
@greedy_and_beams
def test_the_length_that_is_asked_for_holds(saved, asked, beams):
    model = trained_like()
    model.generation_config.update(**saved, eos_token_id=None)
    assert model.generate(**draw_sources(), eos_token_id=None, **asked, num_beams=beams).shape[1] == 5


@needs_code
@pytest.mark.parametrize("fault", [wrong_gain, another_form])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_proves_itself_before_it_translates(fault, dtype, caplog, monkeypatch):
    """Whatever the reader gets wrong, PyTorch's states and logits tell, once and for good."""
    model = trained_like("reluformer").to(dtype)
    batch = draw_sources(3)
    expected = by_transformers(model, batch, num_beams=3, max_new_tokens=6)
    read = decoder.Translator.__init__

    def read_wrongly(translator, model):
        read(translator, model)
        fault(translator)

    monkeypatch.setattr(decoder.Translator, "__init__", read_wrongly)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert torch.equal(model.generate(**batch, num_beams=3, max_new_tokens=6), expected)
    assert sum("does not translate with this model" in record.message for record in caplog.records) == 1
    assert "PyTorch" in model.search_fallback


def generate(model, batch, **options):
    return model.generate(**batch, **options)


def outcome(search, model, batch, **options):
    """Tokens, or the kind of an error."""
    try:
        return search(model, batch, **options).tolist()
    except Exception as error:
        return type(error)


@needs_code
@pytest.mark.parametrize("rows", [1, 2, 3])
@greedy_and_beams
def test_rows_that_do_not_fit_are_left_to_transformers(rows, beams):
    model = trained_like("reluformer")
    batch = draw_sources(4)
    options = {"num_beams": beams, "max_new_tokens": 4}
    states = model.get_encoder()(**batch)[0]
    targets = torch.ones(rows, 2, dtype=torch.long)
    mask = {"attention_mask": batch["attention_mask"]}
    for given in (
        {**batch, "decoder_input_ids": targets},
        {**mask, "encoder_outputs": (states[:rows],)},
        {**mask, "encoder_outputs": (states,), "decoder_input_ids": targets},
    ):
        assert outcome(generate, model, given, **options) == outcome(by_transformers, model, given, **options)


@needs_code
@pytest.mark.parametrize(
    ("name", "precision", "value"),
    [
        ("lm_head.weight", "float32", torch.inf),
        ("model.encoder.layers.0.self_attn.q_proj.weight", "float32", torch.nan),
        ("lm_head.bias", "float32", torch.nan),
        ("lm_head.bias", "int8", torch.inf),
        ("model.decoder.layers.1.mlp_norm.weight", "int8", torch.nan),
    ],
)
def test_infinity_and_nan_go_to_pytorch(name, precision, value):
    model = trained_like("reluformer", tying="none")
    batch = draw_sources(3)
    model = set_precision(model, precision)
    model.generate(**batch, max_new_tokens=2)
    with torch.no_grad():
        (dict(model.named_parameters()) | dict(model.named_buffers()))[name].view(-1)[5] = value
    for beams in (1, 3):
        options = {"num_beams": beams, "max_new_tokens": 6}
        assert outcome(generate, model, batch, **options) == outcome(by_transformers, model, batch, **options)


@pytest.mark.parametrize(
    "change",
    [
        {"weight": torch.zeros(3, 4, dtype=torch.long)},
        {"weight": torch.zeros(3, 3)},
        {"weight": torch.zeros(3, 4, device="meta")},
        {"bias": torch.zeros(3, dtype=torch.float64)},
    ],
)
def test_what_crosses_into_compiled_code_is_checked(change):
    native_decoder = pytest.importorskip("reluformers_native.decoder")
    tensors = {"weight": torch.zeros(3, 4), "bias": torch.zeros(3), **change}
    with pytest.raises(ValueError, match="must be"):
        native_decoder.Linear.of(**tensors, inputs=4, outputs=3)


@needs_code
def test_states_of_the_encoder_may_be_given_beside_the_source_or_alone():
    model = trained_like("reluformer")
    batch = draw_sources(3)
    expected = by_transformers(model, batch, max_new_tokens=6)
    states = model.get_encoder()(**batch)
    for inputs in (batch, {"attention_mask": batch["attention_mask"]}):
        found = by_compiled_code(model, {**inputs, "encoder_outputs": states}, max_new_tokens=6)
        assert torch.equal(found, expected)


@needs_code
@torch.no_grad()
def test_a_search_of_its_own_does_not_read_the_source_of_the_last_call():
    model = trained_like("reluformer")
    with mock.patch.object(search, "search", side_effect=search.search) as spy:
        expected = model.generate(**draw_sources(3), max_new_tokens=6)
    other = model.generate(**draw_sources(3, seed=1), max_new_tokens=6)
    found = search.search(*spy.call_args.args, **spy.call_args.kwargs)
    assert torch.equal(found, expected)
    assert not torch.equal(found, other)


@needs_code
@greedy_and_beams
def test_opus_options_are_searched_by_compiled_code(beams):
    """Generation options of OPUS-MT folders: a forbidden padding token, and log P of what is left."""
    model = trained_like("reluformer")
    options = {"num_beams": beams, "max_new_tokens": 8, "renormalize_logits": True}
    check_same(model, draw_sources(9), **options, bad_words_ids=[[0], [7]], forced_eos_token_id=END)
    check_same(model, draw_sources(9), **options)
    check_left_to_transformers(model, draw_sources(2), **options, bad_words_ids=[[5, 6]])
    assert "NoBadWords" in model.search_fallback


@needs_code
def test_of_equal_scores_the_first_is_taken():
    model = trained_like("relu")
    with torch.no_grad():
        model.lm_head.weight.zero_()
        model.lm_head.bias.zero_()
        model.lm_head.bias[[30, 17, 5, 9]] = 1.0
    assert (check_same(model, draw_sources(), max_new_tokens=1)[:, 1] == 5).all()
