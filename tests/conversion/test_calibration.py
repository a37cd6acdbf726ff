"""An exchanged attention that was fitted is nearer to the original than one that was not."""

import copy

import pytest
import torch

from reluformers import seq2seq_config, vision_config
from reluformers.conversion import calibration
from reluformers.conversion.calibration import RecordedCall, calibrate
from reluformers.conversion.convert import build_model, open_source
from reluformers.families import FAMILIES
from reluformers.modeling.attention import MultiHeadAttention

# some presets in every run, all of them where there is time
OFTEN = [("translation", "reluformer"), ("translation", "qknorm"), ("images", "rela-g")]
PRESETS = ("reluformer", "relu", "rela", "rela-g", "relu-vit", "qknorm")
ALL = [(task, preset) for task in ("translation", "images") for preset in PRESETS]
FITTED = [pair if pair in OFTEN else pytest.param(*pair, marks=pytest.mark.slow) for pair in ALL]
SIZES = {
    "vocab_size": 40, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "norm_position": "pre",
}  # fmt: skip
IMAGES = {
    "image_size": 16, "patch_size": 4, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 48, "num_labels": 7,
}  # fmt: skip


def sharpen(model):
    """Scores as wide as those of trained models, with key biases, which softmax does not see."""
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, MultiHeadAttention):
                for projection in (module.q_proj, module.k_proj, module.v_proj, module.out_proj):
                    projection.weight.normal_(0, 2.0 * projection.in_features**-0.5)
                    projection.bias.normal_(0, 0.5)
        if hasattr(model, "classifier"):
            model.classifier.weight.normal_(0, 0.3)
    return model.eval()


@pytest.fixture(scope="module", params=["translation", "images"])
def original(request, tmp_path_factory):
    """A folder of a softmax model, batches to fit it on and others to judge it by."""
    torch.manual_seed(0)
    is_translation = request.param == "translation"
    config = seq2seq_config("softmax", **SIZES) if is_translation else vision_config("softmax", **IMAGES)
    auto_class = list(FAMILIES[type(config)])[-1]
    folder = tmp_path_factory.mktemp("softmax")
    sharpen(FAMILIES[type(config)][auto_class](config)).save_pretrained(folder)

    def batch():
        if not is_translation:
            return {"pixel_values": torch.randn(8, 3, 16, 16)}
        ids, mask, labels = (
            torch.randint(4, 40, (8, 9)),
            torch.ones(8, 9, dtype=torch.long),
            torch.randint(4, 40, (8, 7)),
        )
        mask[3:, 6:], labels[:4, 5:] = 0, -100
        return {"input_ids": ids, "attention_mask": mask, "labels": labels}

    return folder, [batch() for _ in range(3)], [batch()]


@torch.no_grad()
def divergence(model, teacher, batches) -> float:
    """Mean Kullback–Leibler divergence of the classes' probabilities."""
    total = 0.0
    for batch in batches:
        ours, theirs = (each(**batch).logits.log_softmax(-1) for each in (model, teacher))
        total += (theirs.exp() * (theirs - ours)).sum(-1).mean().item()
    return total


@pytest.mark.parametrize(("original", "preset"), FITTED, indirect=["original"])
def test_it_is_nearer_on_other_inputs(preset, original):
    folder, batches, others = original
    teacher, model = build_model(open_source(folder)), build_model(open_source(folder), preset)
    expected = [teacher(**batch).logits for batch in others]
    before, exchanged = divergence(model, teacher, others), copy.deepcopy(model)
    _, fitted = calibrate(model, teacher, batches)
    errors_before, errors = (calibrate(copy.deepcopy(one), teacher, others)[0] for one in (exchanged, model))
    assert sum(errors.values()) < sum(errors_before.values())
    # random scores are about as wide as QKNorm starts with, and random image models hardly look at their attention
    if preset != "qknorm" and "labels" in others[0]:
        assert divergence(model, teacher, others) < 0.8 * before
    assert fitted == pytest.approx(calibrate(copy.deepcopy(model), teacher, batches)[0])
    for batch, logits in zip(others, expected, strict=True):  # the original stays as it is
        assert torch.equal(teacher(**batch).logits, logits)


@pytest.mark.parametrize(
    "attention",
    ["reluformer", {"preset": "relu", "activation": "relu2"}, pytest.param("relu-vit", marks=pytest.mark.slow)],
    ids=str,
)
def test_row_sums_are_1_on_average(attention, original):
    folder, batches, _ = original
    teacher, fields = build_model(open_source(folder)), {"attention": attention}
    model = build_model(open_source(folder), "relu", config_fields=fields)
    calibrate(model, teacher, batches)
    sums = {}

    def note(name):
        def hook(module, given, options, output):
            real = options["attention_mask"].query_mask
            rows = output[1].sum(-1).transpose(1, 2)  # [batch, query_len, heads]
            sums.setdefault(name, []).append(rows[real] if real is not None else rows.flatten(0, 1))

        return hook

    name, module = next((n, m) for n, m in model.named_modules() if isinstance(m, MultiHeadAttention))
    module.register_forward_hook(note(name), with_kwargs=True)
    for batch in batches:  # the inputs of the first layer are those of the original
        model(**batch, output_attentions=True)
    means = torch.cat(sums[name]).mean(0)
    torch.testing.assert_close(means, torch.ones_like(means), atol=1e-4, rtol=0)


def test_only_exchanged_sites_are_touched(original):
    folder, batches, _ = original
    site = "cross" if "labels" in batches[0] else "encoder"
    teacher, model = build_model(open_source(folder)), build_model(open_source(folder), "reluformer", [site])
    for each in (model, teacher):
        each.train()
    _, errors = calibrate(model, teacher, batches)
    assert model.training
    assert teacher.training
    part = "cross_attn" if site == "cross" else "self_attn"
    assert errors
    assert all(part in name for name in errors)
    for (name, ours), theirs in zip(model.named_parameters(), teacher.parameters(), strict=True):
        assert torch.equal(ours, theirs) or (part in name and ("q_proj" in name or name.endswith("k_proj.bias")))


@torch.no_grad()
def test_padded_queries_have_no_say():
    module, reference = MultiHeadAttention(12, 3, "rela-g"), MultiHeadAttention(12, 3)
    states, source, joined = torch.randn(2, 5, 12), torch.randn(2, 7, 12), torch.randn(2, 5, 12)
    real, found = torch.tensor([[True] * 3 + [False] * 2, [True] * 5]), []
    for rubbish in (3.0, -8.0):
        hidden, wanted = (part.masked_fill(~real[..., None], rubbish) for part in (states, joined))
        calls, fitted = [RecordedCall(hidden, source, None, real, wanted)], copy.deepcopy(module)
        calibration.fit_gain(fitted.output_norm, calibration._pairs(fitted, calls, fitted.output_norm))
        error = torch.tensor(calibration.relative_error(calibration._pairs(module, calls)))
        scale, shift = calibration._row_scale(module, calls, 3), calibration._key_shift(reference, calls, 1.0)
        found.append((error, *scale, shift, fitted.output_norm.weight))
    torch.testing.assert_close(*found)
