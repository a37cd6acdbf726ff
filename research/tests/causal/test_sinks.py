"""The task that needs sinks: what is to be written, and where it counts."""

import torch

from reluformers.configuration.configuration_attention import AttentionConfig
from reluformers_research.sinks import LENGTH, draw_rows, make_mask


def test_a_trigger_asks_for_the_mean_of_the_tokens_before_it():
    inputs, outputs, places = draw_rows(20, torch.Generator().manual_seed(0))
    for row, position in enumerate(places.tolist()):
        torch.testing.assert_close(outputs[row, position], inputs[row, 1:position].mean(0))
        outputs[row, position] = 0
    assert outputs.count_nonzero() == 0


def test_a_divisor_counts_the_tokens_of_the_mean():
    counts = make_mask(AttentionConfig.parse("relu-vit")).key_counts.flatten()
    assert counts.tolist() == [1, 1, *range(1, LENGTH - 1)]
    assert make_mask(AttentionConfig()).key_counts.flatten().tolist() == list(range(1, LENGTH + 1))
