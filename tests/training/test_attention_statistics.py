"""Statistics of the attention in the log of the stock `Trainer`, of models of transformers."""

import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainingArguments,
)

from builders.models import build_marian
from reluformers import AttentionStatistics, exchange_attention
from reluformers.evaluation.attention_report import attention_report
from reluformers.training.attention_statistics import measure_attention

SIZES = {"vocab_size": 30, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2}
NAMES = ("attention_zeros", "attention_null_rate", "attention_row_sum")


def build_llama(attention: str | None) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(**SIZES, num_attention_heads=4, num_key_value_heads=2, pad_token_id=0, initializer_range=0.5)
    model = LlamaForCausalLM._from_config(config, attn_implementation=attention or "eager")
    if attention is None:
        exchange_attention(model, "relu")
    return model


@pytest.fixture
def batch() -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    ids = torch.randint(1, 30, (3, 9))
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


@pytest.mark.parametrize("attention", ["relu_attention", "entmax15_attention", None])
def test_numbers_are_those_of_the_weights_that_a_model_returns(attention, batch):
    model = build_llama(attention)
    with torch.no_grad():
        weights = torch.stack(model.eval()(**batch, output_attentions=True).attentions)  # [layers, batch, heads, q, k]
    real = batch["attention_mask"].bool()
    visible = torch.ones(9, 9, dtype=torch.bool).tril() & real[:, None] & real[..., None]
    rows = weights.permute(1, 3, 0, 2, 4)[real]  # [real queries, layers, heads, k]
    expected = {
        "zeros": (weights.eq(0) & visible[:, None]).sum() / (visible.sum() * 8),
        "null_rate": rows.eq(0).all(-1).float().mean(),
        "row_sum": rows.sum(-1).mean(),
    }
    model.train()
    found = measure_attention(model, batch, by_layer=True)
    assert model.training
    for name, value in expected.items():
        assert found[f"attention_{name}"] == pytest.approx(float(value), rel=1e-5)
        layers = [found[f"attention_{name}/{number}"] for number in range(2)]
        assert sum(layers) / 2 == pytest.approx(float(value), rel=1e-5)
    assert 0 < found["attention_zeros"] < 1


def test_encoder_decoders_count_what_the_report_of_evaluations_counts(batch):
    model = build_marian(30, decoder_layers=3, init_std=0.5)
    model.set_attn_implementation("relu_attention")
    batch["labels"] = torch.tensor([[5, 6, 7, 1], [8, 1, -100, -100], [9, 9, 1, -100]])
    report = attention_report(model, [batch]).overall
    found = measure_attention(model, batch)
    assert [found[name] for name in NAMES] == pytest.approx([report.zeros, report.null_rate, report.row_sum])


def train(folder, batch, model, is_watched: bool) -> Trainer:
    rows = [{name: values[row] for name, values in batch.items()} for row in (0, 1, 2, 0)]
    options = {"max_steps": 4, "logging_steps": 2, "per_device_train_batch_size": 2, "disable_tqdm": True}
    arguments = TrainingArguments(folder, **options, report_to=[], save_strategy="no", use_cpu=True, seed=3)
    trainer = Trainer(model, arguments, train_dataset=rows)
    if is_watched:
        trainer.add_callback(AttentionStatistics(trainer))
    trainer.train()
    return trainer


def test_the_log_has_them_and_training_is_the_same(tmp_path, batch):
    watched, plain = (
        train(tmp_path, batch, build_llama("relu_attention"), is_watched) for is_watched in (True, False)
    )
    found = [entry for entry in watched.state.log_history if "attention_zeros" in entry]
    assert len(found) == 2
    assert all(set(NAMES) <= entry.keys() for entry in found)
    losses = [[entry["loss"] for entry in one.state.log_history if "loss" in entry] for one in (watched, plain)]
    assert losses[0] == losses[1]
    assert not watched.model._forward_pre_hooks


def test_a_model_without_our_attention_is_refused(tmp_path, batch):
    with pytest.raises(ValueError, match="LlamaForCausalLM"):
        train(tmp_path, batch, build_llama("sdpa"), True)
