"""The pass over models of this library and of transformers: what it sees is what they compute."""

import pytest
import torch
from transformers import MBartConfig, MBartForConditionalGeneration, ViTConfig, ViTForImageClassification

from builders.models import TINY, TINY_VISION, build_marian, build_model, draw_images, draw_pairs
from reluformers_research.analysis.model_analysis import analyse_model, learned_scalars
from reluformers_research.analysis.observation import observing

STOCK_VISION = {name: size for name, size in TINY_VISION.items() if name not in ("pooling", "num_labels")}
TRANSLATORS = {
    "marian": lambda: build_marian(40, decoder_layers=3, decoder_attention_heads=4, init_std=1.0),
    "mbart": lambda: MBartForConditionalGeneration(MBartConfig(**TINY, pad_token_id=0, init_std=1.0)).eval(),
    **{
        f"{preset}-{position}": lambda preset=preset, position=position: build_model(
            preset, norm_position=position, feed_forward_norm="layer_norm"
        )
        for preset, position in (("softmax", "post"), ("reluformer", "pre"), ("qknorm", "pre"), ("rela-g", "post"))
    },
}
CLASSIFIERS = {
    "vit": lambda: ViTForImageClassification(ViTConfig(**STOCK_VISION, num_labels=5, initializer_range=1.0)).eval(),
    **{
        pooling: lambda pooling=pooling: build_model("relu-vit", "vision", pooling=pooling)
        for pooling in ("cls", "mean", "attention")
    },
}


def count_hooks(model) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


def attention_inputs(model) -> dict:
    """What the output projection, or the output norm before it, of every attention module is given."""
    seen = {}
    for name, module in model.named_modules():
        if hasattr(module, "v_proj"):
            last = getattr(module, "output_norm", None) or getattr(module, "out_proj", None) or module.o_proj
            last.register_forward_pre_hook(lambda _, inputs, name=name: seen.update({name: inputs[0]}))
    return seen


@pytest.mark.parametrize("name", TRANSLATORS)
def test_translation_models(name):
    model = TRANSLATORS[name]()
    seen = attention_inputs(model)
    with observing(model) as observe:
        observed = observe(draw_pairs())
    assert {site: len(layers) for site, layers in observed.items()} == {"encoder": 2, "decoder": 3, "cross": 3}
    for module, output in seen.items():
        layer = int(module.split(".")[-2])
        site = "encoder" if ".encoder." in module else "decoder" if module.endswith("self_attn") else "cross"
        rows = observed[site][layer]
        computed = (rows.weights @ rows.values).transpose(1, 2).flatten(2)
        real = rows.real[:, 0]
        torch.testing.assert_close(computed[real], output[real], rtol=1e-4, atol=1e-5)
        assert (rows.correct is None) == (site == "encoder")


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_vision_models(name):
    model = CLASSIFIERS[name]()
    seen = attention_inputs(model)
    images = draw_images()
    pixels, labels = images["pixel_values"], images["labels"]
    with observing(model) as observe:
        observed = observe(images)
        unlabelled = observe({"pixel_values": pixels})
    assert set(observed) == ({"encoder", "pooling"} if name == "attention" else {"encoder"})
    for module, output in seen.items():
        site = "pooling" if "pooler" in module else "encoder"
        rows = observed[site][int(module.split(".")[2]) if site == "encoder" else 0]
        torch.testing.assert_close(
            (rows.weights @ rows.values).transpose(1, 2).flatten(2), output, rtol=1e-4, atol=1e-5
        )
    with torch.no_grad():
        right = model(pixels).logits.argmax(-1) == labels
    assert observed["encoder"][0].correct.flatten().tolist() == right.tolist()
    assert unlabelled["encoder"][0].correct is None


@pytest.mark.parametrize("name", [*TRANSLATORS, *CLASSIFIERS])
def test_every_statistic_of_every_model(name):
    model = (TRANSLATORS | CLASSIFIERS)[name]()
    batch = draw_pairs() if name in TRANSLATORS else draw_images()
    analyse_model(model, [batch])  # transformers leaves hooks of its own behind at the first pass
    hooks = count_hooks(model)
    results = analyse_model(model, [batch, batch])["statistics"]
    assert count_hooks(model) == hooks
    assert {"zeros", "null_rate", "entropy", "row_sum", "sink", "accuracy", "head_diversity"} <= set(results)
    assert ("null_rate.shuffled" in results) == (name in TRANSLATORS)


@pytest.mark.parametrize("labels", [[-100, 6, 7, 2], [6, -100, 7, 2]])
def test_the_decoder_sees_what_it_reads_whatever_is_scored(labels):
    model = TRANSLATORS["softmax-post"]()
    with observing(model) as observe:
        observed = observe({"input_ids": torch.tensor([[5, 6, 2]]), "labels": torch.tensor([labels])})
    for rows in observed["decoder"]:
        scored = torch.tensor([labels]) != -100
        assert torch.equal(rows.real[:, 0], scored)
        torch.testing.assert_close(rows.row_sums[:, :, scored[0]], torch.ones(1, rows.weights.shape[1], 3))
        assert rows.key_counts[0, 0][scored[0]].tolist() == (torch.arange(4) + 1)[scored[0]].tolist()


def test_right_places_are_those_of_the_argmax():
    model, batch = TRANSLATORS["marian"](), draw_pairs()
    with torch.no_grad():
        # the first is right now; the others depend on it
        batch["labels"][1, 0] = model(**batch).logits[1, 0].argmax()
        predicted = model(**batch).logits.argmax(-1)
    with observing(model) as observe:
        rows = observe(batch)["cross"][0]
    assert rows.correct[:, 0].tolist() == (predicted == batch["labels"]).tolist()
    assert rows.correct[1, 0, 0]


def test_learned_scalars():
    model = build_model("qknorm")
    with torch.no_grad():
        model.model.decoder.layers[1].cross_attn.scale.fill_(7.0)
    (scale,) = learned_scalars(model).values()
    assert {site: len(layers) for site, layers in scale.items()} == {"encoder": 2, "decoder": 3, "cross": 3}
    assert scale["cross"][1] == {"overall": 7.0, "heads": []}
