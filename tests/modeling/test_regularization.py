"""The regulariser of ReLUFormer, eq. 7, and the null rate, from weights."""

import pytest
import torch
from torch import nn

import reference
from builders.models import KINDS, build_model, draw_pairs
from reluformers.modeling import regularization


def test_padding_of_the_target_is_no_null_row():
    model = build_model("rela")
    states = model.get_encoder()(torch.arange(4, 10)[None]).last_hidden_state

    def sums(tokens, mask=None):
        encoded = states.expand(len(tokens), -1, -1)
        rows = model.get_decoder()(tokens, mask, encoder_hidden_states=encoded, output_null_rate=True).site_rows
        return regularization.regularizer_sums(rows, None)

    first = torch.arange(5, 10)[None]
    second = torch.arange(20, 23)[None]
    padded = torch.cat([first, nn.functional.pad(second, (2, 0))])
    mask = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]])
    torch.testing.assert_close(sums(padded, mask), sums(first) + sums(second))


def test_model_takes_the_mean_over_real_queries_heads_layers_and_sites():
    weights = {"normalization_loss_weight": 0.2, "entropy_loss_weight": 0.7, "entropy_bound": 0.3}
    model = build_model("reluformer", **KINDS["seq2seq"].still, **weights).train()
    batch = draw_pairs()
    real = batch["attention_mask"].bool()
    targets = batch["labels"] != -100
    output = model(**batch, output_attentions=True)
    causal = torch.ones(6, 6).tril().bool().expand(3, -1, -1)
    sites = [
        *((part, real[:, None].expand(-1, 7, -1), real) for part in output.encoder_attentions),
        *((part, causal, targets) for part in output.decoder_attentions),
        *((part, real[:, None].expand(-1, 6, -1), targets) for part in output.cross_attentions),
    ]
    sums = [[float(torch.as_tensor(part).detach()) for part in reference.regularization(*site, 0.3)] for site in sites]
    normalization, entropy, null_rows, rows = (sum(column) for column in zip(*sums, strict=True))
    assert rows == 2 * 2 * 17 + 2 * 3 * 4 * 14  # layers · heads · real queries
    assert output.regularization_loss.item() == pytest.approx((0.2 * normalization + 0.7 * entropy) / rows, rel=1e-5)
    assert output.null_rate.item() == pytest.approx(null_rows / rows)
