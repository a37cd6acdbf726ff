"""A causal row from text to score, and again from its folder."""

import numpy as np
import pytest
import torch
from datasets import Dataset

from reluformers_research.causal.models import build_model
from reluformers_research.causal.recipe import CausalRecipe
from reluformers_research.causal.run import train_causal
from reluformers_research.causal.scoring import CausalScorer, CausalScoring, open_model
from reluformers_research.causal.text import train_tokenizer


@pytest.fixture
def text(tmp_path):
    lines = [f"the {one} sees the {two}" for one in ("cat", "dog", "bird") for two in ("tree", "house", "sea")]
    for split in ("train", "validation", "test"):
        Dataset.from_list([{"text": "\n".join(lines * 20)}]).to_parquet(tmp_path / f"{split}.parquet")
    train_tokenizer(lines, 300).save(str(tmp_path / "tokenizer.json"))
    return {**{split: str(tmp_path / f"{split}.parquet") for split in ("train", "validation", "test")}, "length": 16}


def sections(text, **model):
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    return {
        "task": "text-generation",
        "model": {**sizes, **model},
        "data": text,
        "training": {
            **{"max_steps": 6, "per_device_train_batch_size": 4, "save_steps": 3, "logging_steps": 2, "seed": 1},
            **{"learning_rate": 1e-2, "report_to": "none", "use_cpu": True, "dataloader_pin_memory": False},
        },
    }


@pytest.mark.parametrize(
    "model",
    [
        {"attention": "rela-g"},
        {"attention": {"output_gate": "sigmoid"}},
        {"attention": "reluformer", "model_type": "gpt2", "max_position_embeddings": 16},
    ],
)
def test_a_row_is_trained_saved_and_scored(text, tmp_path, model):
    recipe = CausalRecipe.from_dict(sections(text, **model))
    results = train_causal(recipe, tmp_path / "run", report=print)
    assert results["validation_loss"] < np.log(300)
    scorer = CausalScorer(CausalScoring(model=tmp_path / "run", data={"test": text["test"]}, length=16))
    evaluation = scorer.run()
    counted = scorer.row_statistics(scorer.answers)["loss"].sum(0)
    assert scorer.scores_of_sums()["loss"](counted) == pytest.approx(evaluation.scores["loss"].value, rel=1e-4)
    # the splits are the same text here
    assert evaluation.scores["loss"].value == pytest.approx(results["validation_loss"], rel=1e-4)


@pytest.mark.parametrize("attention", ["qknorm", {"activation": "softmax1", "learned_threshold": True}])
def test_learned_scalars_do_not_decay(text, tmp_path, attention):
    """The learning rate is too small to move what does not decay."""
    values = sections(text, attention=attention)
    values["training"] |= {"learning_rate": 1e-4, "weight_decay": 5000.0, "max_grad_norm": 1e-9, "adam_epsilon": 1.0}
    recipe = CausalRecipe.from_dict(values)
    before = dict(build_model(recipe.model_config(vocab_size=300), recipe.attention).named_parameters())
    train_causal(recipe, tmp_path / "run", report=print)
    after = dict(open_model(tmp_path / "run").named_parameters())
    learned = [name for name, one in before.items() if one.numel() < 32]
    assert learned
    for name in learned:
        torch.testing.assert_close(after[name], before[name])
    weight = "model.layers.0.mlp.up_proj.weight"
    assert after[weight].norm() < before[weight].norm() / 4
