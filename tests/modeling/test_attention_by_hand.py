"""Examples of the formulas that are worked out by hand: one head, two or three tokens, identity projections."""

import math

import pytest
import torch

from reluformers.modeling.attention import MultiHeadAttention

E, ROOT, THIRD = math.e, math.sqrt(2), math.sqrt(3 / 2)
CAUSAL, OWN_HIDDEN = [[1, 0, 0], [1, 1, 0], [1, 1, 1]], [[0, 1], [1, 0]]
# name → the attention, tokens, mask, weights and outputs
EXAMPLES = {
    # scores of (1) and (0): (1, 0) and (0, 0)
    "softmax": ("softmax", [[1], [0]], None, [[E / (E + 1), 1 / (E + 1)], [0.5, 0.5]], [[E / (E + 1)], [0.5]]),
    # scores of (2) and (−1): (4, −2) and (−2, 1); n = 2, so √(n/2) = 1
    "reluformer of two": ("reluformer", [[2], [-1]], None, [[4, 0], [0, 1]], [[8], [-1]]),
    "reluformer counts what a causal query sees": (
        *("reluformer", [[2], [1], [1]], CAUSAL),
        [[4 * ROOT, 0, 0], [2, 1, 0], [2 / THIRD, 1 / THIRD, 1 / THIRD]],
        [[8 * ROOT], [5], [6 / THIRD]],
    ),
    # the first place is padding: queries 2 and 3 see 1 and 2 keys
    "reluformer counts no padding": (
        *("reluformer", [[9], [2], [1]], [[0, 0, 0], [0, 1, 0], [0, 1, 1]]),
        *([[0, 0, 0], [0, 4 * ROOT, 0], [0, 2, 1]], [[0], [8 * ROOT], [5]]),
    ),
    # γ√(n/2) with γ = 3
    "gamma": (
        {"preset": "reluformer", "gamma": 3.0},
        [[2], [-1]],
        None,
        [[4 / 3, 0], [0, 1 / 3]],
        [[8 / 3], [-1 / 3]],
    ),
    "relu-vit": ("relu-vit", [[2], [-1]], None, [[2, 0], [0, 0.5]], [[4], [-0.5]]),
    "threshold": ({"preset": "relu", "threshold": 1.5}, [[2], [1]], None, [[2.5, 0.5], [0.5, 0]], [[5.5], [1]]),
    # scores over √2: (1, 3) and (3, 25); o_1 = (10, 12)/√2 and o_2 = (78, 100)/√2, each over its root mean square
    "rela": (
        *("rela", [[1, 0], [3, 4]], None, [[1 / ROOT, 3 / ROOT], [3 / ROOT, 25 / ROOT]]),
        [[10 / math.sqrt(122), 12 / math.sqrt(122)], [78 / math.sqrt(8042), 100 / math.sqrt(8042)]],
    ),
    "null rows": ("rela-g", [[1], [-1]], OWN_HIDDEN, [[0, 0], [0, 0]], [[0], [0]]),
    "values of unit length": ({"preset": "qknorm", "value_norm": "l2"}, [[3, 4]], None, [[1]], [[0.6, 0.8]]),
    # (1, 3) has mean 2 and variance 1: (−1, 1) but for ε; score (1 + 1)/√2
    "layer norm": (
        *({"preset": "relu-vit", "query_key_norm": "layer_norm"}, [[1, 3]], None),
        *([[ROOT / (1 + 1e-6)]], [[ROOT, 3 * ROOT]]),
    ),
}


def identity_module(width, attention):
    """One head that leaves query, key, value and output as they are."""
    module = MultiHeadAttention(width, 1, attention, bias=False).double()
    with torch.no_grad():
        for projection in (module.q_proj, module.k_proj, module.v_proj, module.out_proj):
            projection.weight.copy_(torch.eye(width))
    return module


def attend(module, tokens, mask=None):
    mask = None if mask is None else torch.tensor([[mask]], dtype=torch.bool)
    with torch.no_grad():
        output, weights, _ = module(torch.tensor([tokens], dtype=torch.float64), attention_mask=mask)
    return output[0].tolist(), weights[0, 0].tolist()


@pytest.mark.parametrize(("attention", "tokens", "mask", "weights", "outputs"), EXAMPLES.values(), ids=EXAMPLES)
def test_example(attention, tokens, mask, weights, outputs):
    found = attend(identity_module(len(tokens[0]), attention), tokens, mask)
    for rows, expected in zip(found, (outputs, weights), strict=True):
        assert rows == [pytest.approx(row, rel=2e-6) for row in expected]


def test_parameters_start_as_the_released_code_does():
    for length, printed in ((72, 12.320), (75, 12.438), (79, 12.589)):
        module = MultiHeadAttention(4, 2, {"preset": "qknorm", "scale_length": length})
        assert module.scale.tolist() == [pytest.approx(printed, abs=5e-4)]  # one for all heads
    bound = math.sqrt(3 / 300)
    norms = {name: MultiHeadAttention(300, 3, name).output_norm for name in ("rela", "rela-i", "rela-g")}
    assert torch.equal(norms["rela"].weight, torch.ones(300))
    assert torch.equal(norms["rela-g"].weight, torch.ones(300))
    for drawn in (norms["rela-i"].weight, norms["rela-g"].gate):
        assert drawn.abs().max() <= bound
        assert drawn.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.15)
