"""The pass over models of this library and of transformers: what it sees is what they compute."""

from itertools import chain

import pytest
import torch
from transformers import MBartConfig, MBartForConditionalGeneration, ViTConfig, ViTForImageClassification

from builders.models import TINY, TINY_VISION, build_marian, build_model, draw_images, draw_pairs
from reluformers.evaluation.observation import attention_modules
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


@pytest.mark.parametrize("name", [*TRANSLATORS, *CLASSIFIERS])
def test_weights_and_values_make_what_is_projected(name):
    model = (TRANSLATORS | CLASSIFIERS)[name]()
    seen = {}
    sites = attention_modules(model)
    for module in chain.from_iterable(sites.values()):
        last = getattr(module, "output_norm", None) or getattr(module, "out_proj", None) or module.o_proj
        last.register_forward_pre_hook(lambda _, inputs, module=module: seen.update({module: inputs[0]}))
    with observing(model) as observe:
        observed = observe(draw_pairs() if name in TRANSLATORS else draw_images())
    assert list(observed) == list(sites)
    for site, modules in sites.items():
        for rows, module in zip(observed[site], modules, strict=True):
            computed = (rows.weights @ rows.values).transpose(1, 2).flatten(2)
            real = rows.real[:, 0]
            torch.testing.assert_close(computed[real], seen[module][real], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", [*TRANSLATORS, *CLASSIFIERS])
def test_every_statistic_of_every_model(name):
    model = (TRANSLATORS | CLASSIFIERS)[name]()
    batch = draw_pairs() if name in TRANSLATORS else draw_images()
    analyse_model(model, [batch])  # transformers leaves hooks of its own behind at the first pass
    hooks = count_hooks(model)
    results = analyse_model(model, [batch, batch])["statistics"]
    assert count_hooks(model) == hooks
    assert {"zeros", "null_rate", "entropy", "row_sum", "sink", "head_diversity"} <= set(results)
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


def test_learned_scalars():
    model = build_model("qknorm")
    with torch.no_grad():
        model.model.decoder.layers[1].cross_attn.scale.fill_(7.0)
    (scale,) = learned_scalars(model).values()
    assert {site: len(layers) for site, layers in scale.items()} == {"encoder": 2, "decoder": 3, "cross": 3}
    assert scale["cross"][1] == {"overall": 7.0, "heads": []}
