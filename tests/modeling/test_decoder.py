"""The compiled translation: every formula beside PyTorch's, and what it must not take."""

import copy
import inspect
import threading
from unittest import mock

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import GenerationMixin

from builders.models import build_model
from builders.searches import draw_sources, trained_like
from reluformers import quantize_int8
from reluformers.configuration.configuration_attention import ACTIVATIONS
from reluformers.saved_models import set_precision
from reluformers_kernels import decoder
from reluformers_kernels.compiled import native

BUILT = native.usable_instruction_sets() if native is not None else []
pytestmark = pytest.mark.skipif(not BUILT, reason="needs compiled code for this processor")

ATTENTIONS = [
    *({"activation": name} for name in ACTIVATIONS),
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


def lively(**fields):
    model = build_model("softmax", output_bias=True, **fields)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
    return model


def padded_sources(seed=0, rows=5):
    """Some are padded on the right, one on the left, and one in between."""
    batch = draw_sources(rows, seed)
    batch["attention_mask"][1] = torch.tensor([0, 0, 1, 1, 0, 1, 1, 1, 1])
    batch["attention_mask"][2] = torch.tensor([0, 0, 0, 1, 1, 1, 1, 1, 1])
    return batch


def generate_by(way, model, batch, **options):
    """Tokens by PyTorch (`plain`), or by compiled code, which must be taken."""
    found = []
    with pytest.MonkeyPatch.context() as patch:
        if way == "plain":
            patch.setattr(decoder.Translator, "of", lambda _: None)
        else:
            patch.setattr(
                decoder.Translator, "search", lambda *arguments: found.append(SEARCH(*arguments)) or found[-1]
            )
        tokens = model.generate(**batch, **options)
    assert len(found) == (way == "compiled")
    return tokens


SEARCH = decoder.Translator.search
# transformers 5.17 takes the vocabulary of the sources for that of the targets, and ends in an error of shapes
BEAMS_ARE_OF_SOURCES = "vocab_size" in inspect.signature(GenerationMixin._get_top_k_continuations).parameters


@pytest.mark.parametrize("number", range(len(FIELDS)), ids=lambda number: str(FIELDS[number])[:60])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_formula_is_that_of_pytorch(number, dtype):
    """The second call is by what the first one has prepared, with the encoder in compiled code as well.

    bfloat16 has the tokens that PyTorch gives in float32 for the same rounded weights.
    """
    model, batch = lively(**SIZES[number % len(SIZES)], **FIELDS[number]).to(dtype), padded_sources(number)
    exact = copy.deepcopy(model).float()
    for beams in (1, 3):
        if beams > 1 and BEAMS_ARE_OF_SOURCES and "decoder_vocab_size" in FIELDS[number]:
            continue
        options = {"num_beams": beams, "max_new_tokens": 8}
        expected = generate_by("plain", exact, batch, **options)
        for _ in range(2):
            assert torch.equal(generate_by("compiled", model, batch, **options), expected)


@pytest.mark.parametrize("name", BUILT)
def test_every_instruction_set(name, monkeypatch):
    monkeypatch.setattr(native, "instruction_set", lambda: name)
    for size in SIZES:
        model, batch = lively(**size, activation_function="swiglu", attention="rela-g"), padded_sources(3)
        half = copy.deepcopy(model).bfloat16()
        for kind, exact in (
            (model, model),
            (half, copy.deepcopy(half).float()),
            (quantize_int8(copy.deepcopy(model)), None),
        ):
            options = {"num_beams": 4, "max_new_tokens": 8, "num_return_sequences": 2}
            found = generate_by("compiled", kind, batch, **options)
            assert exact is None or torch.equal(found, generate_by("plain", exact, batch, **options))


@pytest.mark.parametrize("sentences", [1, 2, 17, 64])
@pytest.mark.parametrize("beams", [1, 2, 3, 8])
def test_any_number_of_sentences_and_threads(sentences, beams):
    model, batch = trained_like("reluformer", max_position_embeddings=200), draw_sources(sentences, seed=beams)
    options = (
        {"num_beams": beams, "max_new_tokens": 100, "length_penalty": 0.7} if beams > 1 else {"max_new_tokens": 100}
    )
    expected = generate_by("plain", model, batch, **options)
    threads = torch.get_num_threads()
    try:
        for number in (1, 3):
            torch.set_num_threads(number)
            for _ in range(2):
                assert torch.equal(generate_by("compiled", model, batch, **options), expected)
    finally:
        torch.set_num_threads(threads)


def test_several_python_threads_at_once():
    model, wrong = trained_like("rela-g"), []
    batches = [draw_sources(6, seed=seed) for seed in range(4)]
    expected = [model.generate(**batch, num_beams=3, max_new_tokens=9) for batch in batches]

    def translate(number):
        for _ in range(10):
            found = model.generate(**batches[number], num_beams=3, max_new_tokens=9)
            if not torch.equal(found, expected[number]):
                wrong.append(number)

    threads = [threading.Thread(target=translate, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


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


@pytest.mark.parametrize(
    "change",
    [
        *(changed_in_place, with_other_memory, with_another_module, with_another_field, with_unit_rows_changed),
        with_another_eps,
    ],
    ids=lambda change: change.__name__,
)
def test_weights_and_modules_may_change_between_two_calls(change):
    model, batch = trained_like("qknorm", tying="none"), draw_sources(8)
    options = {"num_beams": 2, "max_new_tokens": 8}
    with torch.inference_mode():
        before = generate_by("compiled", model, batch, **options)
    assert torch.equal(generate_by("compiled", model, batch, **options), before)
    change(model)
    expected = generate_by("plain", model, batch, **options)
    assert not torch.equal(expected, before)
    for _ in range(2):
        assert torch.equal(generate_by("compiled", model, batch, **options), expected)


def with_hook(model):
    model.model.decoder.layers[0].mlp.register_forward_hook(lambda module, inputs, output: -output)


def with_hook_before(model):
    model.model.encoder.layers[0].mlp.register_forward_pre_hook(lambda module, inputs: (-inputs[0],))


def with_forward_of_its_own(model):
    mlp = model.model.decoder.layers[0].mlp
    mlp.forward = lambda states: -type(mlp).forward(mlp, states)


def with_parametrization(model):
    torch.nn.utils.parametrize.register_parametrization(
        model.model.decoder.layers[0].mlp.fc1, "weight", torch.nn.Hardtanh(-0.1, 0.1)
    )


def with_subclass(model):
    class Other(type(model.model.decoder.layers[0].mlp)):
        def forward(self, states):
            return -super().forward(states)

    model.model.decoder.layers[0].mlp.__class__ = Other


def with_lora(model):
    tuned = get_peft_model(model, LoraConfig(target_modules=["q_proj", "v_proj"], init_lora_weights=False))
    tuned.eval()


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


@pytest.mark.parametrize(
    "change",
    [
        *(with_hook, with_hook_before, with_forward_of_its_own, with_parametrization, with_subclass, with_lora),
        *(in_another_dtype, by_columns, pruned, with_weight_as_attribute),
        *(with_method_of_its_own, with_shortened_rows, with_processors_of_its_own),
    ],
    ids=lambda change: change.__name__,
)
def test_what_is_not_the_librarys_own_goes_on_in_pytorch(change):
    model, batch = trained_like("reluformer"), draw_sources(8)
    for _ in range(2):
        model.generate(**batch, max_new_tokens=8)
    change(model)
    with mock.patch.object(decoder.Translator, "search", mock.Mock(side_effect=AssertionError)):
        tokens = model.generate(**batch, max_new_tokens=8)
    expected = model.generate(**batch, max_new_tokens=8, custom_generate=GenerationMixin._sample)
    assert torch.equal(tokens, expected)


def test_settings_that_compiled_code_does_not_see_go_on_in_pytorch(monkeypatch):
    model = trained_like("reluformer")
    with torch.no_grad():
        assert decoder.Translator.of(model) is not None
        hook = torch.nn.modules.module.register_module_forward_hook(lambda module, inputs, output: None)
        assert decoder.Translator.of(model) is None
        hook.remove()
        torch.set_default_dtype(torch.float64)
        try:
            assert decoder.Translator.of(model) is None
        finally:
            torch.set_default_dtype(torch.float32)
        model.config._attn_implementation = "mine"
        assert decoder.Translator.of(model) is None


def test_a_forced_token_that_is_not_there_is_refused():
    model, batch = trained_like("reluformer"), draw_sources(3)
    with pytest.raises(IndexError):
        model.generate(**batch, forced_bos_token_id=10**6, max_new_tokens=4)


def test_states_of_the_encoder_may_be_given_beside_the_source_or_alone():
    model, batch = trained_like("reluformer"), draw_sources(3)
    expected = generate_by("plain", model, batch, max_new_tokens=6)
    with torch.no_grad():
        states, mask = model.get_encoder()(**batch), {"attention_mask": batch["attention_mask"]}
        for given, inputs in ((states, batch), (states, batch), (states.to_tuple(), mask)):
            assert torch.equal(model.generate(**inputs, encoder_outputs=given, max_new_tokens=6), expected)


def test_training_and_gradients_go_on_in_pytorch():
    model, batch = trained_like("reluformer", dropout=0.5), draw_sources(8)
    kept = generate_by("compiled", model, batch, max_new_tokens=8)
    model.train()
    with mock.patch.object(decoder.Translator, "search", mock.Mock(side_effect=AssertionError)):
        model.generate(**batch, max_new_tokens=8)
    model.eval()
    assert torch.equal(generate_by("compiled", model, batch, max_new_tokens=8), kept)


def test_options_may_change_between_two_calls():
    model, batch = trained_like("reluformer"), draw_sources(8)
    for _ in range(2):
        generate_by("compiled", model, batch, max_new_tokens=8)
    model.generation_config.suppress_tokens = [7, 8]
    for options in ({"max_new_tokens": 8}, {"max_new_tokens": 5}, {"max_new_tokens": 5, "num_beams": 2}):
        expected = generate_by("plain", model, batch, **options)
        for _ in range(2):
            assert torch.equal(generate_by("compiled", model, batch, **options), expected)


def test_tokens_and_lengths_that_are_not_there_are_refused():
    model, batch = trained_like("reluformer"), draw_sources(3)
    for _ in range(2):
        model.generate(**batch, max_new_tokens=4)
    for token in (-1, 40):
        wrong = batch["input_ids"].index_fill(1, torch.tensor(0), token)
        with pytest.raises(IndexError):
            model.generate(wrong, attention_mask=batch["attention_mask"], max_new_tokens=4)
    with pytest.raises(ValueError, match="max_position_embeddings is 32"):
        model.generate(torch.full((1, 33), 5), attention_mask=torch.ones(1, 33).long(), max_new_tokens=4)


@pytest.mark.parametrize("preset", ["reluformer", "rela-g", "qknorm"])
def test_int8_is_near_float32(preset):
    """At least as near as PyTorch's int8, which has 7 bits for the rows."""
    model = trained_like(preset, d_model=64, encoder_ffn_dim=96)
    packed, same = set_precision(copy.deepcopy(model), "int8"), {"plain": 0, "compiled": 0}
    for seed in range(8):
        batch, options = draw_sources(16, seed=seed), {"max_new_tokens": 8, "eos_token_id": None}
        exact = generate_by("plain", model, batch, **options)
        for way in same:
            found = generate_by(way, packed, batch, **options)
            same[way] += int((found[:, 1] == exact[:, 1]).sum())
    assert same["compiled"] > 0.8 * 8 * 16
    assert same["compiled"] > 0.95 * same["plain"]
