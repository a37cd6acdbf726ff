"""Vision models: the forward pass against a naive one, positions, pooling, initialisation, loss and bad input."""

import itertools

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
    config = model.config
    parameters = dict(model.named_parameters())
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
    length = states.shape[1]
    heads = config.num_attention_heads

    def attend(name: str, site: str, queries: torch.Tensor, keys: torch.Tensor | None = None) -> torch.Tensor:
        visible = torch.ones(len(queries), queries.shape[1], length, dtype=torch.bool)
        attention = config.attention_for(site)
        return reference.multi_head_attention(submodule(parameters, name), attention, heads, queries, visible, keys)[0]

    def feed_forward(name: str, inputs: torch.Tensor) -> torch.Tensor:
        return reference.feed_forward(submodule(parameters, name), config.hidden_act, inputs)

    for number in range(config.num_hidden_layers):
        layer = f"vit.layers.{number}"
        attention_norm = f"{layer}.self_attn_norm"
        mlp_norm = f"{layer}.mlp_norm"
        if config.norm_position == "pre":
            states = states + attend(f"{layer}.self_attn", "encoder", norm(parameters, attention_norm, states))
            states = states + feed_forward(f"{layer}.mlp", norm(parameters, mlp_norm, states))
        else:
            states = norm(parameters, attention_norm, states + attend(f"{layer}.self_attn", "encoder", states))
            states = norm(parameters, mlp_norm, states + feed_forward(f"{layer}.mlp", states))
    if config.norm_position == "pre" and not config.norm_after_pooling:
        states = norm(parameters, "vit.norm", states)
    if config.pooling == "attention":
        query = parameters["vit.pooler.probe"].expand(len(states), -1, -1)
        pooled = attend("vit.pooler.attention", "pooling", query, states)
        pooled = (pooled + feed_forward("vit.pooler.mlp", norm(parameters, "vit.pooler.norm", pooled)))[:, 0]
    else:
        pooled = states[:, 0] if config.pooling == "cls" else states.mean(1)
    if config.norm_after_pooling:
        pooled = norm(parameters, "vit.norm", pooled)
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
        *(("softmax", {"norm_after_pooling": True, "pooling": pooling}) for pooling in POOLINGS),
    ],
)
def test_forward_is_the_naive_one(preset, fields):
    model = build_model(preset, "vision", **fields).double()
    pixels = draw_images()["pixel_values"].double()
    torch.testing.assert_close(model(pixels).logits, naive_logits(model, pixels))


def test_sincos2d_is_that_of_big_vision():
    table = sincos2d_table(3, 4, 16)
    rates = 10000.0 ** (-torch.arange(4, dtype=torch.float64) / 3)
    for number, found in enumerate(table):
        angles = [number % 4 * rates, number // 4 * rates]
        expected = torch.cat([part for angle in angles for part in (angle.sin(), angle.cos())])
        torch.testing.assert_close(found, expected)


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
    with pytest.raises(ValueError, match="positions"):
        model(bigger, interpolate_pos_encoding=False)


def test_initialisation_is_that_of_big_vision():
    fields = {"hidden_size": 128, "intermediate_size": 384, "image_size": 64, "patch_size": 8}
    fields |= {"representation_size": 300, "head_bias_init": -10.0, "hidden_act": "swiglu"}  # 384 · 2/3 = 256
    config = vision_config("relu-vit", **{**TINY_VISION, **fields}, attention={"output_gate": "silu"})
    model = AutoModelForImageClassification.from_config(config)
    spreads = {
        **{f"{name}_proj.weight": (2 / 256) ** 0.5 for name in ("q", "k", "v", "out", "gate")},  # each map by itself
        **{f"{name}.weight": (2 / 384) ** 0.5 for name in ("fc1", "fc_linear", "fc2")},
        "projection.weight": (3 * 64) ** -0.5,
        **dict.fromkeys(("representation.weight", "position_embeddings"), 128**-0.5),
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
    fields |= {"pooling": "cls", "num_register_tokens": 8, "initialization": "normal"}
    normal = AutoModelForImageClassification.from_config(vision_config("relu-vit", **{**TINY_VISION, **fields}))
    for name in ("classifier.weight", "vit.layers.0.mlp.fc1.weight", "vit.embeddings.register_tokens"):
        assert normal.get_parameter(name).std().item() == pytest.approx(0.02, rel=0.15)


def test_stochastic_depth_rises_with_the_layers_and_is_off_in_evaluation():
    model = build_model("relu-vit", "vision", drop_path_rate=0.5)
    assert [layer.drop_path_rate for layer in model.vit.layers] == [0.0, 0.25, 0.5]
    torch.testing.assert_close(logits_of(model), logits_of(build_model("relu-vit", "vision")))
    assert not torch.allclose(logits_of(model.train()), logits_of(model.eval()))


@pytest.mark.parametrize("pooling", POOLINGS)
def test_no_pooling_reads_the_registers(pooling):
    """And the n of relu/L counts the patches alone."""
    model = build_model("relu-vit", "vision", pooling=pooling, num_register_tokens=3)
    output = model.vit(draw_images()["pixel_values"])
    first = int(pooling == "cls")
    options = model.vit.attention_options(AttentionMask(1, 6, torch.device("cpu")))
    changed = output.last_hidden_state.clone()
    changed[:, first : first + 3] += 7.0
    torch.testing.assert_close(model.vit.pool(changed, options)[0], output.pooler_output)
    changed[:, 0 if pooling == "cls" else -1] += 7.0
    assert not torch.allclose(model.vit.pool(changed, options)[0], output.pooler_output)


def sums_over_classes(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return 5 * functional.binary_cross_entropy_with_logits(logits, targets)


@pytest.mark.parametrize("is_training", [False, True])
@pytest.mark.parametrize(
    ("problem", "loss"), [(None, functional.cross_entropy), ("multi_label_classification", sums_over_classes)]
)
def test_losses_of_classes_and_of_shares(problem, loss, is_training):
    model = build_model("relu-vit", "vision", label_smoothing=0.2, problem_type=problem)
    batch = draw_images()
    model.train(is_training)
    one_hot = functional.one_hot(batch["labels"], 5).float()
    mixed = 0.7 * one_hot + 0.3 * one_hot.roll(1, 0)
    several = torch.tensor([[1, 0, 1, 0, 0], [0, 0, 0, 0, 0], [0, 1, 0, 0, 1]])
    for labels in (batch["labels"], one_hot, mixed, *([several] if problem else [])):
        output = model(batch["pixel_values"], labels=labels)
        targets = labels.float() if labels.dim() == 2 else one_hot
        smoothed = 0.8 * targets + 0.2 / 5 if is_training else targets
        torch.testing.assert_close(output.loss, loss(output.logits, smoothed))


def test_one_label_is_a_regression_unless_another_problem_is_named():
    pixels = draw_images()["pixel_values"]
    model = build_model("relu-vit", "vision", num_labels=1)
    for labels in (torch.tensor([1.0, -2.0, 0.5]), torch.tensor([[1.0], [-2.0], [0.5]]), torch.tensor([1, -2, 0])):
        output = model(pixels, labels=labels)
        torch.testing.assert_close(output.loss, (output.logits.flatten() - labels.flatten()).square().mean())
    model.config.problem_type = "single_label_classification"
    assert model(pixels, labels=torch.zeros(3, dtype=torch.long)).loss == 0
    several = build_model("relu-vit", "vision", num_labels=4, problem_type="regression")
    labels = torch.rand(3, 4)
    output = several(pixels, labels=labels)
    torch.testing.assert_close(output.loss, (output.logits - labels).square().mean())
    for labels in (torch.zeros(3), torch.zeros(12), torch.zeros(3, 3)):
        with pytest.raises(ValueError, match="as many as logits"):
            several(pixels, labels=labels)


@pytest.mark.parametrize("problem", [None, "multi_label_classification"])
@pytest.mark.parametrize(
    "inputs",
    [
        {"pixel_values": torch.zeros(3, 3, 9, 12)},
        *({"labels": torch.tensor(labels)} for labels in ([0, -1, 1], [0, 1, 99], [-100, 1, 1], [0.0] * 3, [0, 0])),
        *({"labels": torch.eye(3, 5).masked_fill(torch.eye(3, 5).bool(), share)} for share in (255.0, torch.nan)),
        {"labels": torch.zeros(3, 9)},
    ],
)
def test_bad_inputs_are_refused(inputs, problem):
    with pytest.raises((ValueError, RuntimeError)):
        build_model("relu-vit", "vision", problem_type=problem)(**{**draw_images(), **inputs})


def test_dropped_paths_are_whole_and_keep_the_mean():
    dropped = drop_path(torch.ones(4000, 2, 3, dtype=torch.bfloat16), 0.2)
    assert dropped.dtype == torch.bfloat16
    rows = dropped.flatten(1)
    assert (rows == rows[:, :1]).all()
    assert (rows[:, 0] == 0).float().mean().item() == pytest.approx(0.2, abs=0.03)
    assert rows.float().mean().item() == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("name", ["hidden_dropout_prob", "attention_probs_dropout_prob", "activation_dropout"])
def test_every_dropout_is_read_in_training_alone(name):
    expected = logits_of(build_model("relu-vit", "vision").train())
    model = build_model("relu-vit", "vision", **{name: 0.3})
    torch.testing.assert_close(logits_of(model), expected)
    assert not torch.allclose(logits_of(model.train()), expected)
    embedded = model.vit.embeddings(draw_images()["pixel_values"])
    assert (embedded == 0).any() == (name == "hidden_dropout_prob")


def test_outputs_are_those_of_the_layers():
    model = build_model("relu-vit", "vision", pooling="mean")
    pixels = draw_images()["pixel_values"]
    output = model.vit(pixels, output_hidden_states=True)
    torch.testing.assert_close(output.hidden_states[0], model.vit.embeddings(pixels))
    torch.testing.assert_close(model.vit.norm(output.hidden_states[-1]), output.last_hidden_state)
    torch.testing.assert_close(output.pooler_output, output.last_hidden_state.mean(1))
    rows = regularizer_sums(model.vit(pixels, output_null_rate=True).site_rows, None)[-1]
    assert rows == 3 * 2 * 3 * 6  # images x heads x layers x tokens
    with torch.autocast("cpu", torch.bfloat16):
        states = model.vit(pixels, output_hidden_states=True).hidden_states
    assert states[1].dtype == torch.float32  # a residual stream of bfloat16 would lose what layers add
