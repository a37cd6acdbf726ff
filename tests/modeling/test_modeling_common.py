"""What every model of every kind and family must do, as users of transformers expect it."""

import itertools

import pytest
import torch

from builders.models import (
    FAMILY_MODELS,
    KINDS,
    all_family_models,
    build_config,
    build_model,
    logits_of,
)
from reluformers.modeling.attention import MultiHeadAttention

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
    "feed_forward_norm": "layer_norm",
    "learned_swish_beta": True,
    "norm_type": "scale_norm",
}
RICH_MODELS = [
    ("seq2seq", {**RICH, "activation_function": "swiglu", "embedding_bias": True, "output_bias": True}),
    ("seq2seq", {"position_embedding_type": "learned", "tying": "none", "norm_position": "pre"}),
    ("vision", {**RICH, "hidden_act": "swiglu", "representation_size": 12, "head_bias_init": -3.0}),
    ("vision", {"position_embedding_type": "sincos2d", "pooling": "cls", "num_register_tokens": 2}),
]


@pytest.mark.parametrize(("kind", "fields"), RICH_MODELS)
def test_saved_and_loaded_model_gives_equal_logits(kind, fields, tmp_path):
    model = build_model("rela-g", kind, **fields)
    model.save_pretrained(tmp_path)
    loaded = KINDS[kind].auto_class.from_pretrained(tmp_path)
    assert type(loaded) is type(model)
    assert loaded.config.to_dict()["attention"] == model.config.to_dict()["attention"]
    torch.testing.assert_close(logits_of(loaded), logits_of(model), rtol=0, atol=0)


@pytest.mark.parametrize(("kind", "fields"), RICH_MODELS)
def test_parameters_missing_from_a_checkpoint_get_their_initial_values(kind, fields, tmp_path):
    model = KINDS[kind].auto_class.from_config(build_config(kind, "rela-g", **fields))
    model.save_pretrained(tmp_path, state_dict={"unrelated": torch.zeros(3)})
    loaded = type(model).from_pretrained(tmp_path)
    restored_ones = dict(loaded.named_parameters()) | dict(loaded.named_buffers())
    for name, fresh in [*model.named_parameters(), *model.named_buffers()]:
        restored = restored_ones[name]
        assert torch.isfinite(restored).all(), name
        if fresh.unique().numel() == 1 or not fresh.requires_grad:
            torch.testing.assert_close(restored, fresh, msg=name)
        else:  # random: the same spread, as far as a dozen numbers show it whatever is drawn
            assert 0.25 < restored.std() / fresh.std() < 4, name


NAMES = [
    "lm_head.bias",
    "model.encoder.embed_positions.weight",
    "model.decoder.embed_positions.weight",
    "model.encoder.layers.0.mlp.norm.weight",
    "model.decoder.layers.0.mlp.norm.bias",
    "model.decoder.layers.0.mlp.swish_beta",
    "vit.layers.0.mlp.norm.bias",
    "vit.layers.0.mlp.swish_beta",
    "vit.representation.weight",
    "vit.embeddings.cls_token",
    "vit.embeddings.register_tokens",
    "vit.embeddings.position_embeddings",
]


def test_names_of_parameters_that_folders_of_format_1_lack():
    found = [build_model("relu", kind, **fields).state_dict() for kind, fields in RICH_MODELS]
    assert set(NAMES) <= set().union(*found)


@pytest.mark.parametrize(
    ("model", "dtype"),
    list(zip(FAMILY_MODELS, itertools.cycle([torch.bfloat16, torch.float16]), strict=False)),
)
def test_half_precision_stays_finite_and_near(model, dtype):
    kind, preset = model
    model = build_model(preset, kind)
    batch = KINDS[kind].draw()
    expected = logits_of(model)
    half = model.to(dtype).train()
    loss = half(**batch).loss
    assert loss.dtype == torch.float32
    loss.backward()
    for name, parameter in half.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
    actual = logits_of(half.eval())
    assert actual.dtype == dtype
    assert (actual.float() - expected).abs().mean() < 0.1 * expected.abs().mean()


@pytest.mark.parametrize("kind", KINDS)
def test_gradient_checkpointing_gives_the_same_gradients(kind):
    results = []
    for is_checkpointed in (False, True):
        model = build_model("reluformer", kind, **KINDS[kind].still).train()
        if is_checkpointed:
            model.gradient_checkpointing_enable()
        loss = model(**KINDS[kind].draw()).loss
        loss.backward()
        results.append([loss, *(part.grad for part in model.parameters())])
    torch.testing.assert_close(*results)


@all_family_models
def test_attentions_and_hidden_states_are_returned(kind, preset):
    model = build_model(preset, kind)
    batch = KINDS[kind].draw()
    output = model(**batch, output_attentions=True, output_hidden_states=True)
    for name, shapes in KINDS[kind].attentions.items():
        assert [tuple(weights.shape) for weights in output[name]] == shapes
        assert getattr(model(**batch), name) is None
    for name, length in KINDS[kind].hidden_states.items():
        assert len(output[name]) == length


@pytest.mark.parametrize(
    ("kind", "preset", "is_training", "backend"),
    [
        ("seq2seq", "reluformer", True, "eager"),
        # one for each path by which a forward is computed, and with the compiler of its gradients
        *(
            pytest.param("seq2seq", preset, preset != "entmax15", "aot_eager", marks=pytest.mark.slow)
            for preset in ("reluformer", "relu-sum", "qknorm", "entmax15")
        ),
        pytest.param("vision", "relu-vit", False, "aot_eager", marks=pytest.mark.slow),
    ],
)
def test_a_step_compiles_as_one_graph(kind, preset, is_training, backend):
    torch.compiler.reset()  # the compiler counts how often a function is compiled again, over all models of a process
    layers = ("num_hidden_layers",) if kind == "vision" else ("encoder_layers", "decoder_layers")
    model = build_model(preset, kind, **KINDS[kind].still, **dict.fromkeys(layers, 1)).train(is_training)
    batch = KINDS[kind].draw()
    outputs = []
    part = next(module for module in model.modules() if isinstance(module, MultiHeadAttention)).q_proj.weight
    for run in (torch.compile(model, fullgraph=True, backend=backend), model):
        with torch.set_grad_enabled(is_training):
            output = run(**batch)
        outputs.append([output.logits, output.loss])
        if is_training:
            outputs[-1] += torch.autograd.grad(output.loss, part)
    # sums are made in another order, and a norm of small vectors widens what that changes
    torch.testing.assert_close(*outputs, rtol=1e-3, atol=1e-4)


@all_family_models
def test_lora_trains_projections_and_heads(kind, preset):
    from peft import LoraConfig, get_peft_model

    batch = KINDS[kind].draw()
    expected = logits_of(build_model(preset, kind))
    for names in (["q_proj", "v_proj"], [{"seq2seq": "lm_head", "vision": "classifier"}[kind]]):
        config = LoraConfig(target_modules=names, r=2, init_lora_weights=False)
        adapted = get_peft_model(build_model(preset, kind), config).train()
        adapted(**batch).loss.backward()
        assert all(p.grad.any() for name, p in adapted.named_parameters() if "lora_" in name)
        assert not torch.allclose(adapted.eval()(**batch).logits, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_the_implementation_can_be_set_but_not_to_one_of_softmax(kind):
    model = build_model("relu-vit", kind)
    expected = logits_of(model)
    model.set_attn_implementation("eager")
    torch.testing.assert_close(logits_of(model), expected)
    for name in ("sdpa", "flash_attention_2"):
        with pytest.raises((ValueError, ImportError)):
            model.set_attn_implementation(name)
        with pytest.raises((ValueError, ImportError)):
            KINDS[kind].auto_class.from_config(build_config(kind, "relu-vit"), attn_implementation=name)


@pytest.mark.parametrize("kind", KINDS)
def test_regularizer_is_a_part_of_the_training_loss(kind):
    weights = {"normalization_loss_weight": 0.3, "entropy_loss_weight": 0.2, "label_smoothing": 0.0}
    model = build_model("reluformer", kind, **KINDS[kind].still, **weights)
    batch = KINDS[kind].draw()
    plain = model(**batch).loss
    output = model.train()(**batch)
    assert output.regularization_loss > 0
    torch.testing.assert_close(output.loss, plain + output.regularization_loss)


@all_family_models
def test_the_null_rate_is_told_where_it_is_asked_for(kind, preset):
    model = build_model(preset, kind)
    batch = KINDS[kind].draw()
    output = model(**batch)
    assert output.regularization_loss is None
    assert output.null_rate is None
    assert (model.train()(**batch).null_rate is None) != model.config.has_regularizer
    for is_training in (False, True):
        output = model.train(is_training)(**batch, output_null_rate=True)
        assert 0 <= output.null_rate <= 1
        assert (output.regularization_loss is None) != (is_training and model.config.has_regularizer)
