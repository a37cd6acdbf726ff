"""Rollout against hand-made products, and where it is not defined."""

import pytest
import torch

from reluformers_research.analysis.observation import Observed, Rows
from reluformers_research.analysis.rollout import Rollout, attention_rollout


def test_by_hand():
    # one head, two tokens: layer 1 swaps them, layer 2 looks at token 0 alone
    first, second = torch.tensor([[[[0.0, 1.0], [1.0, 0.0]]]]), torch.tensor([[[[1.0, 0.0], [1.0, 0.0]]]])
    assert attention_rollout([first])[0].tolist() == [[0.5, 0.5], [0.5, 0.5]]
    # Ā_2 = [[1, 0], [½, ½]]
    assert attention_rollout([first, second])[0].tolist() == [[0.5, 0.5], [0.5, 0.5]]
    assert attention_rollout([second, first])[0].tolist() == [[0.75, 0.25], [0.75, 0.25]]
    assert attention_rollout([second], residual_share=0.0)[0].tolist() == [[1.0, 0.0], [1.0, 0.0]]


def test_rows_that_do_not_sum_to_1():
    torch.manual_seed(0)  # three percent of drawn rows have no positive weight
    softmax = torch.rand(2, 3, 5, 5).softmax(-1)
    scaled = softmax * torch.rand(2, 3, 5, 1)
    torch.testing.assert_close(attention_rollout([softmax, softmax]), attention_rollout([scaled, softmax]))
    weights = torch.randn(2, 3, 5, 5).relu()
    weights[0, :, 2] = 0.0  # null in all heads: the token keeps itself
    weights[0, 1, 3] = 0.0  # null in one: the mean of the others
    rolled = attention_rollout([weights])
    torch.testing.assert_close(rolled.sum(-1), torch.ones(2, 5))
    assert rolled[0, 2].tolist() == [0, 0, 1, 0, 0]
    others = weights[0, [0, 2], 3]
    expected = 0.5 * torch.eye(5)[3] + 0.5 * (others / others.sum(-1, keepdim=True)).mean(0)
    torch.testing.assert_close(rolled[0, 3], expected)


def test_where_it_is_not_defined():
    with pytest.raises(ValueError, match="not defined for negative weights"):
        attention_rollout([torch.full((1, 1, 2, 2), -1.0)])
    with pytest.raises(ValueError, match="needs the weights of a layer or more, got none"):
        attention_rollout([])
    with pytest.raises(ValueError, match=r"residual_share must be in \[0, 1\], got 2\.0"):
        attention_rollout([torch.ones(1, 1, 2, 2)], 2.0)
    with pytest.raises(ValueError, match=r"needs self-attention, got weights \[1, 1, 2, 3\]"):
        attention_rollout([torch.ones(1, 1, 2, 3)])


def observed(weights: torch.Tensor, grid: tuple[int, int] | None, has_class_token: bool = True) -> Observed:
    visible = torch.ones_like(weights[:, 0], dtype=torch.bool)
    rows = [Rows.of(weights, visible, visible[..., 0])]
    return Observed({}, {"encoder": rows}, grid=grid, has_class_token=has_class_token)


def test_map_of_a_data_set():
    batches = [torch.rand(2, 1, 7, 7), torch.rand(1, 1, 7, 7)]
    statistic = Rollout()
    for batch in batches:
        statistic.update(observed(batch, (2, 3)))
    patches = attention_rollout([torch.cat(batches)])[:, 0, 1:]
    expected = (patches / patches.sum(-1, keepdim=True)).mean(0).view(2, 3)
    torch.testing.assert_close(torch.tensor(statistic.result()["rollout"]["map"]), expected)
    assert Rollout().result() == {}
    # of registers alone no map is made
    statistic = Rollout()
    statistic.update(observed(batches[1], (2, 3), has_class_token=False))
    expected = attention_rollout(batches[1:])[0, 1:, 1:].mean(0)
    expected = (expected / expected.sum()).view(2, 3)
    torch.testing.assert_close(torch.tensor(statistic.result()["rollout"]["map"]), expected)
    statistic = Rollout()
    statistic.update(observed(batches[0], None))
    assert statistic.result() == {}
    statistic.update(observed(-batches[0], (2, 3)))
    assert statistic.result() == {"rollout": {"undefined": "rollout is not defined for negative weights."}}
    statistic = Rollout()
    statistic.update(observed(batches[0], (2, 3)))
    statistic.update(observed(batches[0], (1, 6)))
    assert statistic.result() == {"rollout": {"undefined": "the images have several sizes."}}
