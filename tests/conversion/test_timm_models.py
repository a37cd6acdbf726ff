"""Vision Transformers in timm's names, beside what timm computes, written out here."""

import json

import pytest
import torch
from safetensors.torch import save_file
from torch.nn import functional
from transformers import AutoModelForImageClassification

# transformers 5.17 has a stand-in for it at the top where torchvision is not installed
from reluformers.conversion.convert import convert

WIDTH, HEADS, LAYERS, CLASSES, PATCH, SIDE = 12, 3, 2, 5, 4, 8
GRID = (SIDE // PATCH) ** 2


def timm_weights(*, cls: int, registers: int, distillation: int, places_prefix: bool, norm: str, bias: bool):
    def draw(*shape, around=0.0):
        return around + 0.3 * torch.randn(shape)

    prefix = cls + registers + distillation
    weights = {
        "patch_embed.proj.weight": draw(WIDTH, 3, PATCH, PATCH),
        "patch_embed.proj.bias": draw(WIDTH),
        "pos_embed": draw(1, GRID + prefix * places_prefix, WIDTH),
        f"{norm}.weight": draw(WIDTH, around=1.0),
        f"{norm}.bias": draw(WIDTH),
        "head.weight": draw(CLASSES, WIDTH),
        "head.bias": draw(CLASSES),
    }
    for name, count in (("cls_token", cls), ("reg_token", registers), ("dist_token", distillation)):
        if count:
            weights[name] = draw(1, count, WIDTH)
    for layer in range(LAYERS):
        shapes = {"attn.qkv": (3 * WIDTH, WIDTH), "attn.proj": (WIDTH, WIDTH)}
        shapes |= {"mlp.fc1": (20, WIDTH), "mlp.fc2": (WIDTH, 20)}
        for name, shape in shapes.items():
            weights[f"blocks.{layer}.{name}.weight"] = draw(*shape)
            if bias or name != "attn.qkv":
                weights[f"blocks.{layer}.{name}.bias"] = draw(shape[0])
        for name in ("norm1", "norm2"):
            weights[f"blocks.{layer}.{name}.weight"] = draw(WIDTH, around=1.0)
            weights[f"blocks.{layer}.{name}.bias"] = draw(WIDTH)
    return weights


def timm_forward(weights, pixels, pool, approximate):
    """`VisionTransformer.forward` of timm: prefix of class token, registers and distillation token; blocks; head."""

    def norm(states, name):
        return functional.layer_norm(states, [WIDTH], weights[f"{name}.weight"], weights[f"{name}.bias"], 1e-6)

    def linear(states, name):
        return functional.linear(states, weights[f"{name}.weight"], weights.get(f"{name}.bias"))

    states = functional.conv2d(
        pixels, weights["patch_embed.proj.weight"], weights["patch_embed.proj.bias"], stride=PATCH
    )
    states = states.flatten(2).transpose(1, 2)
    tokens = [weights[name] for name in ("cls_token", "reg_token", "dist_token") if name in weights]
    prefix = torch.cat(tokens, 1).expand(len(pixels), -1, -1) if tokens else states[:, :0]
    if weights["pos_embed"].shape[1] == states.shape[1]:
        states = torch.cat([prefix, states + weights["pos_embed"]], 1)
    else:
        states = torch.cat([prefix, states], 1) + weights["pos_embed"]
    for layer in range(LAYERS):
        name = f"blocks.{layer}"
        joined = linear(norm(states, f"{name}.norm1"), f"{name}.attn.qkv")
        query, key, value = joined.view(*states.shape[:2], 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        attended = (query @ key.transpose(-1, -2) / (WIDTH // HEADS) ** 0.5).softmax(-1) @ value
        states = states + linear(attended.transpose(1, 2).flatten(2), f"{name}.attn.proj")
        inner = functional.gelu(linear(norm(states, f"{name}.norm2"), f"{name}.mlp.fc1"), approximate=approximate)
        states = states + linear(inner, f"{name}.mlp.fc2")
    if "norm.weight" in weights:
        states = norm(states, "norm")
    pooled = states[:, 0] if pool == "token" else states[:, prefix.shape[1] :].mean(1)
    return linear(norm(pooled, "fc_norm") if "fc_norm.weight" in weights else pooled, "head")


PLAIN = {"cls": 1, "registers": 0, "distillation": 0, "places_prefix": True, "norm": "norm", "bias": True}
KINDS = {
    "vit": ("token", PLAIN),
    "deit_distilled": ("token", PLAIN | {"distillation": 1}),
    "registers": ("token", PLAIN | {"registers": 4, "places_prefix": False}),
    "no_bias": ("token", PLAIN | {"bias": False}),
    "big_vision": ("avg", PLAIN | {"cls": 0}),
    "pooled_norm": ("avg", PLAIN | {"norm": "fc_norm"}),
    "registers_gap": ("avg", PLAIN | {"cls": 0, "registers": 2, "places_prefix": False, "norm": "fc_norm"}),
    "class_token_among_registers": ("avg", PLAIN | {"registers": 2}),
}


def save(folder, weights, **config):
    content = {
        "architecture": "vit_tiny_patch4_8",
        "num_classes": CLASSES,
        "global_pool": "token",
        "pretrained_cfg": {
            "input_size": [3, SIDE, SIDE],
            "mean": [0.485, 0.456, 0.406],
            "std": [0.229, 0.224, 0.225],
            "interpolation": "bicubic",
            "crop_pct": 0.8,
        },
        **config,
    }
    (folder / "config.json").write_text(json.dumps(content))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_timm(kind, tmp_path):
    pool, options = KINDS[kind]
    weights, approximate = timm_weights(**options), "tanh" if kind == "big_vision" else "none"
    save(tmp_path, weights, global_pool=pool, model_args={"act_layer": "gelu_tanh"} if approximate == "tanh" else {})
    convert(tmp_path, tmp_path / "ours")
    model = AutoModelForImageClassification.from_pretrained(tmp_path / "ours")
    pixels = torch.randn(3, 3, SIDE, SIDE)
    expected = timm_forward(weights, pixels, pool, approximate)
    torch.testing.assert_close(model(pixels).logits, expected, atol=1e-5, rtol=1e-5)


def test_heads_can_be_given(tmp_path):
    weights = timm_weights(**PLAIN)
    save(tmp_path, weights, architecture="vit_odd_patch4_8")
    with pytest.raises(KeyError, match="odd"):
        convert(tmp_path, tmp_path / "ours")
    model = convert(tmp_path, tmp_path / "ours", num_attention_heads=HEADS)
    pixels = torch.randn(2, 3, SIDE, SIDE)
    torch.testing.assert_close(model(pixels).logits, timm_forward(weights, pixels, "token", "none"))
