"""Examples of the formulas that are worked out by hand: one head, two or three tokens, identity projections."""

import math

import pytest
import torch

from reluformers.modeling.attention import MultiHeadAttention


def identity_module(width, attention):
    """One head that leaves query, key, value and output as they are."""
    module = MultiHeadAttention(width, 1, attention, bias=False).double()
    with torch.no_grad():
        for projection in (module.q_proj, module.k_proj, module.v_proj, module.out_proj):
            projection.weight.copy_(torch.eye(width))
    return module


def attend(module, tokens, mask=None):
    """Outputs and weights as lists of rows."""
    states = torch.tensor([tokens], dtype=torch.float64)
    mask = None if mask is None else torch.tensor([[mask]], dtype=torch.bool)
    with torch.no_grad():
        output, weights, _ = module(states, attention_mask=mask)
    return output[0].tolist(), weights[0, 0].tolist()


def test_softmax():
    # scores of (1) and (0): (1, 0) and (0, 0)
    output, weights = attend(identity_module(1, "softmax"), [[1.0], [0.0]])
    first = math.e / (math.e + 1)
    assert weights == [pytest.approx([first, 1 - first]), pytest.approx([0.5, 0.5])]
    assert output == [pytest.approx([first]), pytest.approx([0.5])]


def test_reluformer_divides_by_the_root_of_half_the_length():
    # scores of (2) and (−1): (4, −2) and (−2, 1); n = 2, so √(n/2) = 1
    output, weights = attend(identity_module(1, "reluformer"), [[2.0], [-1.0]])
    assert weights == [pytest.approx([4, 0]), pytest.approx([0, 1])]
    assert output == [pytest.approx([8]), pytest.approx([-1])]
    # of (2), (−1) and (1): √(3/2) for each
    output, weights = attend(identity_module(1, "reluformer"), [[2.0], [-1.0], [1.0]])
    factor = math.sqrt(3 / 2)
    expected = [[4 / factor, 0, 2 / factor], [0, 1 / factor, 0], [2 / factor, 0, 1 / factor]]
    assert weights == [pytest.approx(row) for row in expected]
    assert output == [pytest.approx([10 / factor]), pytest.approx([-1 / factor]), pytest.approx([5 / factor])]


def test_reluformer_counts_the_keys_that_a_causal_query_sees():
    causal = [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    _, weights = attend(identity_module(1, "reluformer"), [[2.0], [1.0], [1.0]], causal)
    third = math.sqrt(3 / 2)
    expected = [[4 / math.sqrt(1 / 2), 0, 0], [2, 1, 0], [2 / third, 1 / third, 1 / third]]
    assert weights == [pytest.approx(row) for row in expected]


def test_reluformer_counts_no_padding_on_the_left():
    # the first place is padding: queries 2 and 3 see 1 and 2 keys
    causal = [[0, 0, 0], [0, 1, 0], [0, 1, 1]]
    output, weights = attend(identity_module(1, "reluformer"), [[9.0], [2.0], [1.0]], causal)
    assert weights == [[0, 0, 0], pytest.approx([0, 4 * math.sqrt(2), 0]), pytest.approx([0, 2, 1])]
    assert output == [[0], pytest.approx([8 * math.sqrt(2)]), pytest.approx([5])]


def test_reluformer_gamma():
    # γ√(n/2) with γ = 3: c = 3/√2, α = ½
    gamma = {"preset": "reluformer", "length_coefficient": 3 / math.sqrt(2)}
    _, weights = attend(identity_module(1, gamma), [[2.0], [-1.0]])
    assert weights == [pytest.approx([4 / 3, 0]), pytest.approx([0, 1 / 3])]


def test_relu_vit_divides_by_the_length():
    _, weights = attend(identity_module(1, "relu-vit"), [[2.0], [-1.0], [1.0]])
    assert weights == [pytest.approx(row) for row in ([4 / 3, 0, 2 / 3], [0, 1 / 3, 0], [2 / 3, 0, 1 / 3])]


def test_threshold_is_taken_off_before_the_activation():
    _, weights = attend(identity_module(1, {"preset": "relu", "threshold": 1.5}), [[2.0], [1.0]])
    assert weights == [pytest.approx([2.5, 0.5]), pytest.approx([0.5, 0])]


def test_rela_normalises_the_joined_heads():
    # scores of (1, 0) and (3, 4) over √2: (1, 3) and (3, 25); o_1 = (10, 12)/√2, o_2 = (78, 100)/√2
    output, weights = attend(identity_module(2, "rela"), [[1.0, 0.0], [3.0, 4.0]])
    root = math.sqrt(2)
    assert weights == [pytest.approx([1 / root, 3 / root]), pytest.approx([3 / root, 25 / root])]
    for row, (x, y) in zip(output, [(10 / root, 12 / root), (78 / root, 100 / root)], strict=True):
        rms = math.sqrt((x * x + y * y) / 2)
        assert row == pytest.approx([x / rms, y / rms])


def test_rela_gate_reads_the_vector_before_the_norm():
    module = identity_module(2, "rela-g")
    with torch.no_grad():
        module.output_norm.weight.copy_(torch.tensor([1.0, 2.0]))
        module.output_norm.gate.copy_(torch.tensor([0.1, -0.2]))
    output, _ = attend(module, [[1.0, 0.0], [3.0, 4.0]])
    x, y = 10 / math.sqrt(2), 12 / math.sqrt(2)
    rms = math.sqrt((x * x + y * y) / 2)
    gates = [1 / (1 + math.exp(-0.1 * x)), 1 / (1 + math.exp(0.2 * y))]
    assert output[0] == pytest.approx([gates[0] * x / rms, gates[1] * 2 * y / rms])


def test_rela_null_row_is_zero():
    # scores of (1) and (−1): each sees itself alone, and nothing once that is masked
    output, weights = attend(identity_module(1, "rela-g"), [[1.0], [-1.0]], [[0, 1], [1, 0]])
    assert weights == [[0, 0], [0, 0]]
    assert output == [[0], [0]]


def test_qknorm_takes_the_cosine_times_g():
    # (3, 4) and (40, 30) have the cosine 24/25; g₀ = log₂(4² − 4) = log₂ 12, and no 1/√d
    module = identity_module(2, {"preset": "qknorm", "scale_length": 4})
    assert module.scale.item() == pytest.approx(math.log2(12))
    output, weights = attend(module, [[3.0, 4.0], [40.0, 30.0]])
    own = 1 / (1 + math.exp(-module.scale.item() * (1 - 24 / 25)))
    assert weights == [pytest.approx([own, 1 - own]), pytest.approx([1 - own, own])]
    assert output[0] == pytest.approx([3 * own + 40 * (1 - own), 4 * own + 30 * (1 - own)])


def test_qknorm_scale_starts_at_the_released_values():
    for length, printed in ((72, 12.320), (75, 12.438), (79, 12.589)):
        module = MultiHeadAttention(4, 2, {"preset": "qknorm", "scale_length": length})
        assert module.scale.shape == (1,)  # one for all heads
        assert module.scale.item() == pytest.approx(printed, abs=5e-4)


def test_qknorm_can_give_values_unit_length_too():
    output, _ = attend(identity_module(2, {"preset": "qknorm", "value_norm": "l2"}), [[3.0, 4.0]])
    assert output == [pytest.approx([0.6, 0.8])]


def test_layer_norm_of_query_and_key():
    # (1, 3) has mean 2 and variance 1: (−1, 1) but for ε; score (1 + 1)/√2, weight of relu/L with L = 1
    module = identity_module(2, {"preset": "relu-vit", "query_key_norm": "layer_norm"})
    _, weights = attend(module, [[1.0, 3.0]])
    assert weights == [pytest.approx([2 / math.sqrt(2) / (1 + 1e-6)])]


def test_rela_i_starts_its_gain_between_the_bounds_of_the_joined_width():
    gain = MultiHeadAttention(300, 3, "rela-i").output_norm.weight
    bound = math.sqrt(3 / 300)
    assert gain.abs().max() <= bound
    assert gain.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.15)
    assert torch.equal(MultiHeadAttention(300, 3, "rela").output_norm.weight, torch.ones(300))


def test_rela_g_starts_its_gate_as_the_released_code_does():
    norm = MultiHeadAttention(300, 3, "rela-g").output_norm
    bound = math.sqrt(3 / 300)
    assert norm.gate.abs().max() <= bound
    assert norm.gate.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.15)
    assert torch.equal(norm.weight, torch.ones(300))
