"""The attention report against naive loops on hand-made and on model weights."""

import json
import math
from dataclasses import asdict

import pytest
import torch
from transformers import MarianMTModel

from builders.models import build_marian, build_model, draw_images
from reluformers.evaluation.attention_report import AttentionReport, attention_report


def naive_counts(weights: torch.Tensor, visible: torch.Tensor, real: torch.Tensor) -> dict[str, float]:
    """One number at a time."""
    counts = dict.fromkeys(("pairs", "zeros", "rows", "null", "spread", "entropy", "row_sum"), 0.0)
    for b in range(weights.shape[0]):
        for h in range(weights.shape[1]):
            for i in range(weights.shape[2]):
                if not real[b, i]:
                    continue
                row = [weights[b, h, i, j].item() for j in range(weights.shape[3]) if visible[b, i, j]]
                counts["pairs"] += len(row)
                counts["zeros"] += sum(weight == 0 for weight in row)
                counts["rows"] += 1
                counts["null"] += all(weight == 0 for weight in row)
                counts["row_sum"] += sum(row)
                if sum(row) > 0 and min(row) >= 0:
                    counts["spread"] += 1
                    counts["entropy"] -= sum(w / sum(row) * math.log(w / sum(row)) for w in row if w > 0)
    return counts


def marian() -> MarianMTModel:
    chance = {"attention_dropout": 0.5, "dropout": 0.5, "init_std": 1.0}
    return build_marian(13, decoder_layers=3, decoder_attention_heads=4, **chance).train()


BATCHES = [
    {
        "input_ids": torch.tensor([[4, 5, 6, 7, 2], [8, 9, 2, 0, 0]]),
        "attention_mask": torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]),
        "labels": torch.tensor([[5, 2, -100, -100], [9, 10, 11, 2]]),
    },
    {"input_ids": torch.tensor([[4, 12, 2]]), "labels": torch.tensor([[5, 2]])},
]


def translation_sites(model, batch) -> dict[str, tuple]:
    """Site → weights of its layers, which pairs are visible and which queries are real."""
    with torch.no_grad():
        outputs = model(**batch, output_attentions=True)
    source = batch.get("attention_mask", torch.ones_like(batch["input_ids"])).bool()
    target = batch["labels"] != -100
    causal = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).tril()
    return {
        "encoder": (outputs.encoder_attentions, source[:, :, None] & source[:, None], source),
        "decoder": (outputs.decoder_attentions, target[:, :, None] & causal, target),
        "cross": (outputs.cross_attentions, target[:, :, None] & source[:, None], target),
    }


def image_sites(model, batch) -> dict[str, tuple]:
    """Give what `translation_sites` does for images, where all is visible; a hook sees the pooling query."""
    pooled = []
    if hasattr(model.vit.pooler, "attention"):
        hook = model.vit.pooler.attention.register_forward_hook(lambda *call: pooled.append(call[-1][1]))
    with torch.no_grad():
        weights = model(pixel_values=batch["pixel_values"], output_attentions=True).attentions
    sites = {"encoder": weights, **({"pooling": pooled} if pooled else {})}
    if pooled:
        hook.remove()
    masks = {site: torch.ones_like(layers[0][:, 0], dtype=torch.bool) for site, layers in sites.items()}
    return {site: (layers, masks[site], masks[site][:, :, 0]) for site, layers in sites.items()}


def as_statistics(counts: dict[str, float]) -> dict[str, float]:
    return {
        "zeros": counts["zeros"] / counts["pairs"],
        "null_rate": counts["null"] / counts["rows"],
        "entropy": counts["entropy"] / counts["spread"],
        "row_sum": counts["row_sum"] / counts["rows"],
        "rows": counts["rows"],
    }


def summed(rows: list[dict[str, float]]) -> dict[str, float]:
    return {key: sum(row[key] for row in rows) for key in rows[0]}


def check_report(model, batches, sites_of) -> AttentionReport:
    report = attention_report(model, batches)
    model.eval().set_attn_implementation("eager")
    totals = {}
    for sites in (sites_of(model, batch) for batch in batches):
        for site, (layers, visible, real) in sites.items():
            counts = [naive_counts(weights, visible, real) for weights in layers]
            totals[site] = (
                [summed(pair) for pair in zip(totals[site], counts, strict=True)] if site in totals else counts
            )
    assert set(report.sites) == set(totals)
    for site, layers in totals.items():
        assert len(report.sites[site].layers) == len(layers)
        for row, counts in zip(report.sites[site].layers, layers, strict=True):
            assert asdict(row) == pytest.approx(as_statistics(counts), rel=1e-5)
        assert asdict(report.sites[site].overall) == pytest.approx(as_statistics(summed(layers)), rel=1e-5)
    everything = summed([counts for layers in totals.values() for counts in layers])
    assert asdict(report.overall) == pytest.approx(as_statistics(everything), rel=1e-5)
    return report


def test_report_of_a_softmax_model():
    model = marian()
    model.set_attn_implementation("eager")
    report = check_report(model, BATCHES, translation_sites)
    assert report.overall.row_sum == pytest.approx(1)
    assert report.overall.null_rate == 0
    assert [len(report.sites[site].layers) for site in ("encoder", "decoder", "cross")] == [2, 3, 3]
    # 5 + 3 + 3 source tokens, 2 heads
    assert report.sites["encoder"].layers[0].rows == 22
    assert [[head.rows for head in layer] for layer in report.sites["encoder"].heads] == [[11, 11]] * 2
    assert AttentionReport.from_dict(json.loads(json.dumps(report.to_dict()))) == report


@pytest.mark.parametrize("preset", ["reluformer", "qknorm"])
def test_report_of_our_models(preset):
    model = build_model(preset)
    with torch.no_grad():  # scores far enough from 0 to make some rows null and some weights 0
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.5)
    report = check_report(model, BATCHES, translation_sites)
    assert (report.overall.zeros > 0) == (preset != "qknorm")
    assert (report.overall.null_rate > 0) == (preset == "reluformer")


@pytest.mark.parametrize(("preset", "pooling"), [("relu-vit", "cls"), ("rela-g", "attention")])
def test_report_of_vision_models(preset, pooling):
    model = build_model(preset, "vision", pooling=pooling, initialization="normal", initializer_range=1.0)
    report = check_report(model, [draw_images(3), draw_images(1)], image_sites)
    tokens = 7 if pooling == "cls" else 6
    assert [layer.rows for layer in report.sites["encoder"].layers] == [4 * 2 * tokens] * 3
    assert set(report.sites) == ({"encoder"} if pooling == "cls" else {"encoder", "pooling"})


def test_model_comes_back_as_it_was():
    model = marian().train()
    implementation = model.config._attn_implementation
    assert implementation != "eager"
    with pytest.raises(ValueError, match="decoder"):
        attention_report(model, [*BATCHES, {"input_ids": torch.tensor([[4, 2]])}])
    assert model.training
    assert model.config._attn_implementation == implementation
