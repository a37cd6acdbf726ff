"""The regulariser of ReLUFormer, eq. 7, and the null rate, from weights."""

import pytest
import torch
from torch import nn

import reference
from builders.models import build_model
from reluformers.configuration.configuration_seq2seq import ReLUFormerConfig
from reluformers.modeling import regularization
from reluformers.modeling.modeling_seq2seq import ReLUFormerForConditionalGeneration


def test_padding_of_the_target_is_no_null_row():
    model = build_model("rela", vocab_size=40)
    source = torch.arange(4, 10)[None].expand(2, -1)
    rows = [torch.arange(5, 10)[None], torch.arange(20, 23)[None]]
    rates = [model(source[:1], decoder_input_ids=row, output_null_rate=True) for row in rows]
    padded = torch.cat([rows[0], nn.functional.pad(rows[1], (2, 0))])
    mask = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]])
    options = {"decoder_input_ids": padded, "decoder_attention_mask": mask, "output_null_rate": True}
    together = model.get_decoder()(
        padded, mask, encoder_hidden_states=model.get_encoder()(source).last_hidden_state, output_null_rate=True
    ).site_rows
    alone = [
        model.get_decoder()(row, encoder_hidden_states=one.encoder_last_hidden_state, output_null_rate=True).site_rows
        for row, one in zip(rows, rates, strict=True)
    ]
    alone = sum(regularization.regularizer_sums(sites, None) for sites in alone)
    torch.testing.assert_close(regularization.regularizer_sums(together, None), alone)
    assert model(source, **options).null_rate <= 1


def test_model_takes_the_mean_over_real_queries_heads_layers_and_sites():
    sizes = {"vocab_size": 11, "d_model": 6, "encoder_layers": 2, "decoder_layers": 1, "encoder_ffn_dim": 4}
    heads = {"encoder_attention_heads": 3, "decoder_attention_heads": 2, "decoder_ffn_dim": 4, "dropout": 0.0}
    config = ReLUFormerConfig(**sizes, **heads, attention_dropout=0.0, entropy_bound=0.3)
    config.normalization_loss_weight, config.entropy_loss_weight = 0.2, 0.7
    model = ReLUFormerForConditionalGeneration(config).train()
    inputs = torch.tensor([[4, 5, 6, 7, 2], [8, 9, 2, 0, 0]])
    labels = torch.tensor([[5, 6, 2], [7, 2, -100]])
    real, targets = inputs != 0, labels != -100
    output = model(inputs, real.long(), labels=labels, output_attentions=True)
    source_only = real[:, None, :]
    causal = torch.ones(3, 3).tril().bool().expand(2, 3, 3)
    sites = [
        *((weights, source_only.expand(2, 5, 5), real) for weights in output.encoder_attentions),
        *((weights, causal, targets) for weights in output.decoder_attentions),
        *((weights, source_only.expand(2, 3, 5), targets) for weights in output.cross_attentions),
    ]
    sums = [[float(torch.as_tensor(part).detach()) for part in reference.regularization(*site, 0.3)] for site in sites]
    normalization, entropy, null_rows, rows = (sum(column) for column in zip(*sums, strict=True))
    assert rows == 2 * 3 * 8 + 2 * 5 + 2 * 5  # layers · heads · real queries
    assert output.regularization_loss.item() == pytest.approx((0.2 * normalization + 0.7 * entropy) / rows, rel=1e-5)
    assert output.null_rate.item() == pytest.approx(null_rows / rows)
    model.eval()
    output = model(inputs, real.long(), labels=labels)
    assert output.regularization_loss is None
