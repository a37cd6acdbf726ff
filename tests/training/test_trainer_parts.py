"""The parts of the trainer that stand alone: padding, the meter of the log, the arguments."""

import pytest
import torch
from transformers import DataCollatorForSeq2Seq

from reluformers.data.batching import PairCollator
from reluformers.training.callbacks import TrainingMeter
from reluformers.translation.tokenization import train_tokenizer
from reluformers.translation.trainer import count_tokens


def test_the_collator_equals_that_of_transformers():
    tokenizer = train_tokenizer([["a b c d e"]], 30)
    rows = [
        {"input_ids": [5] * source + [2], "labels": [6] * target + [2]} for source, target in ((3, 1), (1, 4), (0, 2))
    ]
    collator = DataCollatorForSeq2Seq(tokenizer)
    expected = collator([dict(row) for row in rows])
    batch = PairCollator(tokenizer.pad_token_id)(rows)
    assert batch.keys() == expected.keys()
    for name, tensor in batch.items():
        assert torch.equal(tensor, expected[name]), name


def test_the_meter_counts_tokens_and_means():
    meter = TrainingMeter(count_tokens)
    assert meter.summary(torch.clone) == {}
    inputs = {"attention_mask": torch.tensor([[1, 1, 0]]), "labels": torch.tensor([[4, 2, 5, -100]])}
    meter.start()
    meter.add(inputs, {"regularization_loss": torch.tensor(1.0), "null_rate": torch.tensor(0.25)})
    meter.add(inputs, {"regularization_loss": torch.tensor(2.0), "null_rate": torch.tensor(0.75)})
    meter.on_step_end(None, None, None)
    logs = meter.summary(torch.clone)
    assert logs["regularization_loss"] == pytest.approx(1.5)
    assert logs["null_rate"] == pytest.approx(0.5)
    assert logs["target_tokens_per_second"] / logs["source_tokens_per_second"] == pytest.approx(1.5, rel=1e-3)
    for null_rate in (None, torch.tensor(0.5), torch.tensor(0.25), None):
        meter.add(inputs, {"null_rate": null_rate})
    assert meter.summary(torch.clone)["null_rate"] == pytest.approx(0.375)
