"""From scores to weights: every φ of the table against its naive form."""

import pytest
import torch

import reference
from reluformers.configuration.configuration_attention import ACTIVATIONS, SIGNED_ACTIVATIONS
from reluformers.modeling.attention_functions import ATTENTION_ACTIVATIONS

all_activations = pytest.mark.parametrize("name", ATTENTION_ACTIVATIONS)


def draw(query_len, key_len, dtype=torch.float64):
    """Scores [2, 3, query_len, key_len] of a few units, and a mask of which the last query sees nothing."""
    scores = 2 * torch.randn(2, 3, query_len, key_len, dtype=torch.float64)
    mask = torch.rand(2, 1, query_len, key_len) < 0.7
    mask[1, :, -1] = False
    return scores.to(dtype).requires_grad_(), mask


def test_tables_hold_the_same_names():
    assert tuple(ATTENTION_ACTIVATIONS) == ACTIVATIONS
    assert set(reference.ACTIVATIONS) == set(ACTIVATIONS)
    assert set(SIGNED_ACTIVATIONS) == {
        name for name, function in reference.ACTIVATIONS.items() if (function(torch.linspace(-5, 5, 101)) < 0).any()
    }


@pytest.mark.parametrize("name", ["sparsemax", "entmax15"])
@pytest.mark.parametrize("spread", [0, 0.01, 1, 300])
def test_sparse_distributions_are_those_of_the_papers(name, spread):
    for length in (1, 2, 3, 150):
        scores = spread * torch.randn(4, 1, 2, length, dtype=torch.float64)
        scores[:2] = scores[:2].round()  # ties
        expected = torch.stack([reference.ACTIVATIONS[name](row) for row in scores.flatten(0, 2)])
        weights = ATTENTION_ACTIVATIONS[name](scores, None)
        torch.testing.assert_close(weights.flatten(0, 2), expected, rtol=0, atol=1e-12)
    if spread == 1:
        scores = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(lambda z: ATTENTION_ACTIVATIONS[name](z, None), scores)


@all_activations
@pytest.mark.parametrize(
    ("dtype", "size"), [(torch.float32, 1e8), (torch.bfloat16, 1e8), (torch.float16, 6e4)], ids=str
)
def test_extreme_scores_stay_finite_and_masked_ones_do_not_matter(name, dtype, size):
    scores, mask = draw(7, 9, dtype)
    function = ATTENTION_ACTIVATIONS[name]
    other = torch.where(mask, scores, 3e4 * torch.randn(scores.shape).sign().to(dtype))
    assert torch.equal(function(scores, mask), function(other, mask))
    if name == "relu2":  # the square leaves the range of every one of these types at 2 · 10¹⁹ or before
        size = torch.finfo(dtype).max ** 0.5 / 2
    scores = (size * scores.detach().sign()).requires_grad_()
    weights = function(scores, mask)
    assert weights.isfinite().all()
    assert torch.autograd.grad(weights.float().sum(), scores)[0].isfinite().all()
    if name in ("softmax", "sparsemax", "entmax15"):  # low scores keep their weight beside masked ones
        lowest = torch.full((1, 1, 1, 4), -size, dtype=dtype)
        seen = torch.tensor([True, False, True, False])
        assert function(lowest, seen).flatten().tolist() == pytest.approx([0.5, 0, 0.5, 0])


@all_activations
def test_a_nan_is_not_hidden_unless_its_key_is_masked(name):
    scores, mask = draw(4, 6)
    with torch.no_grad():
        scores[0, 0, 1, 2] = torch.nan
    function, mask = ATTENTION_ACTIVATIONS[name], torch.ones_like(mask)
    for seen in (None, mask):
        assert function(scores, seen).isnan().any(-1).nonzero().tolist() == [[0, 0, 1]]
    mask[0, :, 1, 2] = False
    assert function(scores, mask).isfinite().all()
