"""Vision models: the forward pass against a naive one, positions, pooling, initialisation, loss and bad input."""

import itertools
import math

import pytest
import torch
from torch.nn import functional
from transformers import AutoModelForImageClassification

import reference
from builders.models import PRESETS, TINY_VISION, build_model, draw_images, logits_of
from reluformers import vision_config
from reluformers.modeling.layers import drop_path
from reluformers.modeling.masks import AttentionMask
from reluformers.modeling.modeling_vision import VisionTransformerForImageClassification
from reluformers.modeling.patch_embeddings import sincos2d_table
from reluformers.modeling.regularization import regularizer_sums

POOLINGS = ["cls", "mean", "attention"]


def submodule(parameters: dict, prefix: str) -> dict:
    return {name.removeprefix(f"{prefix}."): value for name, value in parameters.items() if name.startswith(prefix)}


def norm(parameters: dict, name: str, states: torch.Tensor) -> torch.Tensor:
    return reference.layer_norm(states, parameters[f"{name}.weight"], parameters[f"{name}.bias"], eps=1e-6)


def naive_logits(model: VisionTransformerForImageClassification, pixels: torch.Tensor) -> torch.Tensor:
    """Dosovitskiy et al. 2021, eq. 1 to 4, patch by patch and with the attention of `reference`."""
    config, parameters = model.config, dict(model.named_parameters())
    kernel, bias = (parameters[f"vit.embeddings.projection.{name}"] for name in ("weight", "bias"))
    size = config.patch_size
    tokens = [
        torch.einsum("bchw,dchw->bd", pixels[:, :, y : y + size, x : x + size], kernel) + bias
        for y in range(0, pixels.shape[2], size)
        for x in range(0, pixels.shape[3], size)
    ]
    states = torch.stack(tokens, 1) + model.vit.embeddings.position_embeddings
    if config.pooling == "cls":
        cls_token = parameters["vit.embeddings.cls_token"].expand(len(states), -1, -1)
        states = torch.cat([cls_token, states], 1)
    length, heads = states.shape[1], config.num_attention_heads

    def attend(name: str, site: str, queries: torch.Tensor, keys: torch.Tensor | None = None) -> torch.Tensor:
        visible = torch.ones(len(queries), queries.shape[1], length, dtype=torch.bool)
        attention = config.attention_for(site)
        return reference.multi_head_attention(submodule(parameters, name), attention, heads, queries, visible, keys)[0]

    def feed_forward(name: str, inputs: torch.Tensor) -> torch.Tensor:
        return reference.feed_forward(submodule(parameters, name), config.hidden_act, inputs)

    for number in range(config.num_hidden_layers):
        layer = f"vit.layers.{number}"
        attention_norm, mlp_norm = f"{layer}.self_attn_norm", f"{layer}.mlp_norm"
        if config.norm_position == "pre":
            states = states + attend(f"{layer}.self_attn", "encoder", norm(parameters, attention_norm, states))
            states = states + feed_forward(f"{layer}.mlp", norm(parameters, mlp_norm, states))
        else:
            states = norm(parameters, attention_norm, states + attend(f"{layer}.self_attn", "encoder", states))
            states = norm(parameters, mlp_norm, states + feed_forward(f"{layer}.mlp", states))
    if config.norm_position == "pre":
        states = norm(parameters, "vit.norm", states)
    if config.pooling == "attention":
        query = parameters["vit.pooler.probe"].expand(len(states), -1, -1)
        pooled = attend("vit.pooler.attention", "pooling", query, states)
        pooled = (pooled + feed_forward("vit.pooler.mlp", norm(parameters, "vit.pooler.norm", pooled)))[:, 0]
    else:
        pooled = states[:, 0] if config.pooling == "cls" else states.mean(1)
    if config.representation_size is not None:
        pooled = torch.tanh(reference.linear(parameters, "vit.representation", pooled))
    return reference.linear(parameters, "classifier", pooled)


@pytest.mark.parametrize(
    ("preset", "fields"),
    [
        *((preset, {"pooling": pooling}) for preset, pooling in zip(PRESETS, itertools.cycle(POOLINGS), strict=False)),
        ("softmax", {"position_embedding_type": "sincos2d", "representation_size": 12}),
        ("softmax", {"attention": {"preset": "relu-vit", "query_key_norm": "layer_norm", "output_gate": "silu"}}),
        ("softmax", {"attention": {"activation": "relu2", "length_exponent": 1.5, "output_gate": "linear"}}),
        ("softmax", {"attention": "relu-vit", "pooling_attention": "softmax"}),
        ("softmax", {"attention": {"activation": "gelu", "length_exponent": 0.5, "learned_length_exponent": True}}),
        ("softmax", {"hidden_act": "swiglu"}),
        ("softmax", {"norm_position": "post"}),
    ],
    ids=str,
)
def test_forward_is_the_naive_one(preset, fields):
    model = build_model(preset, "vision", **fields).double()
    pixels = draw_images()["pixel_values"].double()
    torch.testing.assert_close(model(pixels).logits, naive_logits(model, pixels))


def test_sincos2d_is_that_of_big_vision():
    table, quarter = sincos2d_table(3, 4, 16), 4
    for row in range(3):
        for column in range(4):
            omega = [10000 ** (-m / (quarter - 1)) for m in range(quarter)]
            parts = [(math.sin, column), (math.cos, column), (math.sin, row), (math.cos, row)]
            expected = [function(place * w) for function, place in parts for w in omega]
            torch.testing.assert_close(table[row * 4 + column], torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("kind", ["learned", "sincos2d"])
@pytest.mark.parametrize("pooling", POOLINGS)
def test_other_image_sizes_get_positions_between(kind, pooling):
    model = build_model("relu-vit", "vision", position_embedding_type=kind, pooling=pooling)
    embeddings = model.vit.embeddings
    if kind == "sincos2d":
        torch.testing.assert_close(embeddings.positions(4, 6)[0], sincos2d_table(4, 6, 16).float())
    else:
        random = torch.randn(1, 16, 2, 3)
        with torch.no_grad():
            embeddings.position_embeddings.copy_(random.flatten(2).transpose(1, 2))
        wanted = functional.interpolate(random, size=(4, 6), mode="bicubic", align_corners=False)
        torch.testing.assert_close(embeddings.positions(4, 6), wanted.flatten(2).transpose(1, 2))
    bigger = draw_images(height=16, width=24)["pixel_values"]
    assert model(bigger).logits.shape == (3, 5)
    with pytest.raises(ValueError, match="16 x 24 pixels, but the model's positions are for 8 x 12"):
        model(bigger, interpolate_pos_encoding=False)


def test_initialisation_is_that_of_big_vision():
    fields = {"hidden_size": 128, "intermediate_size": 384, "image_size": 64, "patch_size": 8, "num_labels": 7}
    fields |= {"representation_size": 300, "head_bias_init": -10.0, "hidden_act": "swiglu"}  # 384 · 2/3 = 256
    prefixed = {"pooling": "cls", "num_register_tokens": 8}
    config = vision_config("relu-vit", **{**TINY_VISION, **fields})
    config.attention = {"preset": "relu-vit", "output_gate": "silu"}
    model = AutoModelForImageClassification.from_config(config)
    spreads = {
        **{f"{name}_proj.weight": (2 / 256) ** 0.5 for name in ("q", "k", "v", "out", "gate")},  # each map by itself
        "fc1.weight": (2 / 384) ** 0.5,
        "fc_linear.weight": (2 / 384) ** 0.5,
        "fc2.weight": (2 / 384) ** 0.5,
        "projection.weight": (3 * 64) ** -0.5,
        "representation.weight": 128**-0.5,
        "position_embeddings": 128**-0.5,
        "probe": (2 / 129) ** 0.5,
    }
    for name, spread in spreads.items():
        weights = torch.cat([p.flatten() for key, p in model.named_parameters() if key.endswith(name)])
        assert weights.std().item() == pytest.approx(spread, rel=0.03 if "." in name else 0.15), name
    biases = torch.cat([p for key, p in model.named_parameters() if key.endswith("fc1.bias")])
    assert biases.std().item() == pytest.approx(1e-6, rel=0.15)
    assert model.classifier.weight.count_nonzero() == 0
    assert (model.classifier.bias == -10).all()
    bound = 2 / 0.87962566103423978 * (3 * 64) ** -0.5
    assert model.vit.embeddings.projection.weight.abs().max() <= bound
    normal = AutoModelForImageClassification.from_config(
        vision_config("relu-vit", **{**TINY_VISION, **fields, **prefixed}, initialization="normal")
    )
    prefix = torch.cat([normal.vit.embeddings.cls_token, normal.vit.embeddings.register_tokens], 1)
    for weights in (normal.classifier.weight, normal.vit.layers[0].self_attn.q_proj.weight, prefix):
        assert weights.std().item() == pytest.approx(0.02, rel=0.15)
    assert (normal.classifier.bias == -10).all()


def test_residual_stream_stays_in_single_precision_under_autocast():
    model = build_model("relu-vit", "vision", pooling="cls")
    entering = []
    model.vit.layers[1].register_forward_pre_hook(lambda module, inputs: entering.append(inputs[0].dtype))
    with torch.autocast("cpu", torch.bfloat16):
        logits_of(model)
    logits_of(model.bfloat16())
    assert entering == [torch.float32, torch.bfloat16]


def test_dropped_paths_are_whole_and_keep_the_mean():
    branch = torch.ones(4000, 2, 3, dtype=torch.bfloat16)
    dropped = drop_path(branch, 0.2)
    assert dropped.dtype == branch.dtype
    rows = dropped.flatten(1)
    assert ((rows == 0).all(1) | (rows == rows.max()).all(1)).all()
    assert (rows[:, 0] == 0).float().mean().item() == pytest.approx(0.2, abs=0.03)
    assert rows.float().mean().item() == pytest.approx(1, abs=0.05)


def test_stochastic_depth_rises_with_the_layers_and_is_off_in_evaluation():
    model = build_model("relu-vit", "vision", drop_path_rate=0.5)
    assert [layer.drop_path_rate for layer in model.vit.layers] == [0.0, 0.25, 0.5]
    torch.testing.assert_close(logits_of(model), logits_of(build_model("relu-vit", "vision")))
    assert not torch.allclose(logits_of(model.train()), logits_of(model.eval()))
    assert build_model("relu-vit", "vision", num_hidden_layers=1, drop_path_rate=0.5).vit.layers[0].drop_path_rate == 0


def test_every_dropout_is_read():
    still = build_model("relu-vit", "vision").train()
    torch.testing.assert_close(logits_of(still), logits_of(build_model("relu-vit", "vision")))
    for name in ("hidden_dropout_prob", "attention_probs_dropout_prob", "activation_dropout"):
        model = build_model("relu-vit", "vision", **{name: 0.3}).train()
        assert not torch.allclose(logits_of(model), logits_of(still)), name
        torch.testing.assert_close(logits_of(model.eval()), logits_of(still))
    # the first is of the layers and of what enters them
    embeddings = build_model("relu-vit", "vision", hidden_dropout_prob=0.3).train().vit.embeddings
    assert 0.1 < (embeddings(draw_images()["pixel_values"]) == 0).float().mean() < 0.5


def test_classes_and_soft_targets_give_the_same_loss():
    model, batch = build_model("relu-vit", "vision", label_smoothing=0.2), draw_images()
    soft = functional.one_hot(batch["labels"], 5).float()
    for training in (False, True):
        model.train(training)
        output = model(**batch)
        torch.testing.assert_close(model(batch["pixel_values"], labels=soft).loss, output.loss)
        smoothing = 0.2 if training else 0.0
        targets = soft * (1 - smoothing) + smoothing / 5
        torch.testing.assert_close(output.loss, -(targets * output.logits.log_softmax(-1)).sum(1).mean())
    mixed = 0.7 * soft + 0.3 * soft.roll(1, 0)
    parts = [model.eval()(batch["pixel_values"], labels=part).loss for part in (soft, soft.roll(1, 0))]
    torch.testing.assert_close(model(batch["pixel_values"], labels=mixed).loss, 0.7 * parts[0] + 0.3 * parts[1])


def test_sigmoid_loss_sums_over_classes():
    fields = {"problem_type": "multi_label_classification", "label_smoothing": 0.1}
    model, batch = build_model("relu-vit", "vision", **fields), draw_images()
    several = torch.tensor([[1.0, 0, 1, 0, 0], [0, 0, 0, 0, 0], [0, 1, 0, 0, 1]])
    for training in (False, True):
        output = model.train(training)(batch["pixel_values"], labels=several)
        targets = several * 0.9 + 0.1 / 5 if training else several
        p = output.logits.double().sigmoid()
        expected = -(targets * p.log() + (1 - targets) * (1 - p).log()).sum(1).mean()
        torch.testing.assert_close(output.loss.double(), expected, rtol=1e-5, atol=1e-5)
    one_class = model.eval()(**batch).loss
    torch.testing.assert_close(
        one_class, model(batch["pixel_values"], labels=functional.one_hot(batch["labels"], 5)).loss
    )


def test_one_label_is_a_regression_unless_another_problem_is_named():
    pixels = draw_images()["pixel_values"]
    model = build_model("relu-vit", "vision", num_labels=1)
    for labels in (torch.tensor([1.0, -2.0, 0.5]), torch.tensor([[1.0], [-2.0], [0.5]]), torch.tensor([1, -2, 0])):
        output = model(pixels, labels=labels)
        torch.testing.assert_close(output.loss, (output.logits.flatten() - labels.flatten()).square().mean())
    several, labels = build_model("relu-vit", "vision", num_labels=4, problem_type="regression"), torch.rand(3, 4)
    output = several(pixels, labels=labels)
    torch.testing.assert_close(output.loss, (output.logits - labels).square().mean())
    for labels in (torch.zeros(3), torch.zeros(12), torch.zeros(3, 3)):
        with pytest.raises(ValueError, match=r"but must be as many as logits, \[3, 4\]"):
            several(pixels, labels=labels)
    model.config.problem_type = "single_label_classification"
    assert model(pixels, labels=torch.zeros(3, dtype=torch.long)).loss == 0


BAD_INPUTS = {
    "an image of half patches": {"pixel_values": torch.zeros(3, 3, 9, 12)},
    "a float for each image": {"labels": torch.zeros(3)},
    "too few labels": {"labels": torch.zeros(2, dtype=torch.long)},
    "too many classes": {"labels": torch.zeros(3, 9)},
}
SHARES = torch.rand(3, 5)
BAD_LABELS = [
    (torch.tensor([0, -1, 1]), r"labels\[1\] is -1, but must be from 0 to 4"),
    (torch.tensor([0, 1, 99]), r"labels\[2\] is 99"),
    (torch.tensor([-100, 1, 1]), r"labels\[0\] is -100"),
    (SHARES.masked_fill(torch.eye(3, 5).bool(), 255.0), r"labels\[0, 0\] is 255"),
    (SHARES.masked_fill(torch.eye(3, 5).bool(), torch.nan), r"labels\[0, 0\] is nan"),
]


@pytest.mark.parametrize("problem", [None, "multi_label_classification"])
@pytest.mark.parametrize(("labels", "message"), BAD_LABELS, ids=["-1", "99", "-100", "255", "nan"])
def test_labels_out_of_range_are_named(labels, message, problem):
    model = build_model("relu-vit", "vision", problem_type=problem)
    with pytest.raises(ValueError, match=message):
        model(draw_images()["pixel_values"], labels=labels)


@pytest.mark.parametrize("problem", [None, "multi_label_classification"])
@pytest.mark.parametrize("name", BAD_INPUTS)
def test_bad_inputs_are_refused(name, problem):
    with pytest.raises((ValueError, RuntimeError)):
        build_model("relu-vit", "vision", problem_type=problem)(**{**draw_images(), **BAD_INPUTS[name]})


@pytest.mark.parametrize("pooling", POOLINGS)
def test_no_pooling_reads_the_registers(pooling):
    """And the n of relu/L counts the patches alone."""
    model = build_model("relu-vit", "vision", pooling=pooling, num_register_tokens=3)
    output, first = model.vit(draw_images()["pixel_values"]), int(pooling == "cls")
    options = model.vit.attention_options(AttentionMask(1, 6, torch.device("cpu")))
    changed = output.last_hidden_state.clone()
    changed[:, first : first + 3] += 7.0
    torch.testing.assert_close(model.vit.pool(changed, options)[0], output.pooler_output)
    changed[:, 0 if pooling == "cls" else -1] += 7.0
    assert not torch.allclose(model.vit.pool(changed, options)[0], output.pooler_output)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_the_last_norm_may_come_after_any_pooling(pooling):
    model, normed = build_model("relu-vit", "vision", pooling=pooling, norm_after_pooling=True), []
    model.vit.norm.register_forward_pre_hook(lambda module, inputs: normed.append(inputs[0].shape))
    logits_of(model)
    assert normed == [(3, 16)]


def test_hidden_states_start_with_the_embeddings_and_the_pooler_output_is_returned():
    model = build_model("relu-vit", "vision", pooling="mean")
    pixels = draw_images()["pixel_values"]
    output = model.vit(pixels, output_hidden_states=True)
    torch.testing.assert_close(output.hidden_states[0], model.vit.embeddings(pixels))
    torch.testing.assert_close(model.vit.norm(output.hidden_states[-1]), output.last_hidden_state)
    torch.testing.assert_close(output.pooler_output, output.last_hidden_state.mean(1))
    rows = regularizer_sums(model.vit(pixels, output_null_rate=True).site_rows, None)[-1]
    assert rows == 3 * 2 * 3 * 6  # images x heads x layers x tokens
    assert isinstance(model.vit(pixels, return_dict=False), tuple)
    assert model.get_input_embeddings() is model.vit.embeddings.projection
