"""The training loss: smoothing, regulariser, accumulation; and plain cross-entropy in evaluation."""

from unittest import mock

import pytest
import torch
from torch.nn import functional
from transformers.models.bart.modeling_bart import shift_tokens_right

from builders.models import KINDS, PRESETS, build_model, draw_pairs

STILL = KINDS["seq2seq"].still


@pytest.mark.parametrize("preset", PRESETS)
def test_evaluation_loss_is_plain_cross_entropy(preset):
    output = build_model(preset)(**draw_pairs())
    torch.testing.assert_close(output.loss, functional.cross_entropy(output.logits.mT, draw_pairs()["labels"]))
    assert output.regularization_loss is None
    assert output.null_rate is None


def test_smoothing_spreads_over_the_vocabulary():
    model = build_model(label_smoothing=0.2, **STILL).train()
    output = model(**draw_pairs())
    labels = draw_pairs()["labels"]
    log_probabilities = output.logits.log_softmax(-1)
    expected = [
        0.8 * -log_probabilities[row, step, label] + 0.2 * -log_probabilities[row, step].mean()
        for row, line in enumerate(labels)
        for step, label in enumerate(line)
        if label != -100
    ]
    torch.testing.assert_close(output.loss, torch.stack(expected).mean())


def test_parts_of_unequal_length_weigh_by_their_tokens():
    long = draw_pairs((6,), (6,))
    short = draw_pairs((6,), (2,))
    model = build_model("softmax", **STILL, label_smoothing=0.0).train()
    losses = [model(**part).loss for part in (long, short)]
    parts = [model(**part, num_items_in_batch=8).loss for part in (long, short)]
    torch.testing.assert_close(sum(parts), (6 * losses[0] + 2 * losses[1]) / 8)


def test_batch_without_targets_gives_no_nan():
    batch = draw_pairs()
    batch["labels"] = torch.full_like(batch["labels"], -100)
    for model in (build_model("reluformer"), build_model("reluformer").train()):
        for count in (None, 0, torch.tensor(0)):
            assert torch.isfinite(model(**batch, num_items_in_batch=count).loss)


def test_every_form_of_a_mask_regularizes_the_same():
    model = build_model("reluformer", **STILL).train()
    batch = draw_pairs()
    expected = model(**batch).regularization_loss
    ready = {**batch, "attention_mask": batch["attention_mask"].bool()[:, None, None]}
    torch.testing.assert_close(model(**ready).regularization_loss, expected)
    # without labels padding of the target is no query either, as the loss may be computed elsewhere
    labels = batch.pop("labels")
    config = model.config
    batch["decoder_input_ids"] = shift_tokens_right(labels, config.pad_token_id, config.decoder_start_token_id)
    batch["decoder_attention_mask"] = labels.ne(-100).long()
    torch.testing.assert_close(model(**batch).regularization_loss, expected)


def test_word_dropout_hides_source_and_target_words_in_training_only():
    model = build_model(word_dropout=0.99)
    batch = draw_pairs()
    for is_training in (True, False):
        for side in (model.model.encoder, model.model.decoder):
            with mock.patch.object(side.embed_tokens, "forward", wraps=side.embed_tokens.forward) as embed:
                model.train(is_training)(**batch)
            (ids,) = embed.call_args.args
            hidden = (ids[ids != 0] == 3).float().mean()
            assert hidden > 0.8 if is_training else hidden == 0
