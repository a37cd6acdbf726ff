"""What is measured of a trained causal model, beside its loss.

| name | what |
|---|---|
| loss_1, loss_4, loss_16 | nats a token on windows of 1, 4 and 16 times the training length |
| slow_loss_16, slow_growth_16 | at 16 with 50 times the rotary base, so that positions turn slower; growth from 1 |
| sink_rate | share of heads that give the first token over 0.3 of Σ_j |w_ij|, a mean over queries with any weight |
| largest_sink | what the head that gives the first token most gives it |
| zeros, null_rate, entropy | share of exact zeros, share of rows without any weight, mean entropy of the others |
| survivors, survivor_growth | weights of a row that are not 0; how many times as many at 8 times the length |
| recall_1024 | nats a token that a sentence gains when itself and not another one stood so many tokens before |
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from reluformers.modeling.pipeline_translation import returning_weights

from .rows import started, windows

LENGTHS = (1, 4, 16)
FAR = 1024  # tokens over which a sentence is recalled
TOKENS = 65_536  # that each length is measured on
_SINK = 0.3
_BATCH_TOKENS = 4096
_WRITTEN_TOKENS = 2048  # of a batch whose weights are written out
_SENTENCE = 32  # tokens of what is recalled
_RECALLED = 64  # sentences


@torch.no_grad()
def token_losses(model: PreTrainedModel, rows: Tensor) -> Tensor:
    """Nats of each token after the first of its row [rows, length − 1]."""
    losses = []
    for part in rows.split(max(1, _BATCH_TOKENS // rows.shape[1])):
        logits = model(input_ids=part, use_cache=False).logits[:, :-1].float()
        losses.append(nn.functional.cross_entropy(logits.transpose(1, 2), part[:, 1:], reduction="none"))
    return torch.cat(losses)


def loss_at(model: PreTrainedModel, stream: Tensor, length: int) -> float:
    """Mean loss on windows of a length."""
    return token_losses(model, windows(stream, length)).mean().item()


@torch.no_grad()
def attention_measures(model: PreTrainedModel, rows: Tensor) -> dict[str, float]:
    """Sinks, zeros, null rows, entropy and survivors of the weights of all layers and heads."""
    model = returning_weights(model)
    sums: dict[str, Tensor] = {}
    for part in rows.split(max(1, _WRITTEN_TOKENS // rows.shape[1])):
        outputs = model(input_ids=part, use_cache=False, output_attentions=True)
        for name, value in _sums(outputs.attentions).items():
            sums[name] = sums.get(name, 0) + value
    zeros = sums["zeros"].sum()
    used = sums["used"].sum()
    shares = sums["share"] / sums["used"].clamp_min(1)
    return {
        "sink_rate": (shares > _SINK).double().mean().item(),
        "largest_sink": shares.max().item(),
        "zeros": (zeros / sums["pairs"]).item(),
        "null_rate": (1 - used / sums["rows"]).item(),
        "entropy": (sums["entropy"].sum() / used.clamp_min(1)).item(),
        "survivors": ((sums["pairs"] - zeros) / sums["rows"]).item(),
    }


def _sums(attentions: tuple[Tensor, ...]) -> dict[str, Tensor]:
    """Sums over rows, for each layer and head where they differ [layers, heads]."""
    collected: dict[str, list[Tensor]] = {}
    length = attentions[0].shape[-1]
    # the first query has no choice
    visible = torch.ones(length, length, dtype=torch.bool, device=attentions[0].device).tril()[1:]
    for layer in attentions:
        weights = layer[:, :, 1:].double().where(visible, 0.0)
        sizes = weights.abs()
        total = sizes.sum(-1)
        shares = sizes / total.clamp_min(torch.finfo(torch.double).tiny)[..., None]
        for name, value in {
            "share": shares[..., 0].sum((0, 2)),
            "used": (total > 0).sum((0, 2)).double(),
            "zeros": ((weights == 0) & visible).sum((0, 2, 3)).double(),
            "entropy": -torch.special.xlogy(shares, shares).sum((0, 2, 3)),
        }.items():
            collected.setdefault(name, []).append(value)
    sums = {name: torch.stack(values) for name, values in collected.items()}
    rows = len(attentions[0]) * sums["used"].numel()  # of each query, over layers and heads
    sums["rows"] = torch.tensor(float(rows * (length - 1)))
    sums["pairs"] = visible.sum().double() * rows
    return sums


def recall_at(model: PreTrainedModel, stream: Tensor, distance: int) -> float:
    """Nats a token that a sentence gains when it, and not another one, stood `distance` tokens before it.

    A row is a sentence, what follows it elsewhere in the text, and the sentence. The other row begins with the
    sentence of another row, so that both are read at the same positions.
    """
    span = _SENTENCE + distance
    starts = torch.linspace(0, len(stream) - span, _RECALLED).long()[:, None].to(stream.device)
    places = torch.arange(span, device=stream.device)
    sentences = stream[starts + places[:_SENTENCE]]
    between = stream[(starts + span + places[: distance - _SENTENCE]) % len(stream)]
    losses = [
        token_losses(model, started(torch.cat([first, between, sentences], 1)))[:, 1 - _SENTENCE :]
        for first in (sentences.roll(_RECALLED // 2, 0), sentences)
    ]
    return (losses[0] - losses[1]).mean().item()


@contextmanager
def slow_rotation(model: PreTrainedModel, times: float = 50.0) -> Iterator[None]:
    """Let rotary positions turn by θ^(−2i/d) with θ so many times as large."""
    rotary = model.model.rotary_emb
    before = rotary.inv_freq
    base = model.config.rope_parameters["rope_theta"]
    rotary.inv_freq = before ** (math.log(base * times) / math.log(base))
    try:
        yield
    finally:
        rotary.inv_freq = before


def measure_model(model: PreTrainedModel, stream: Tensor, length: int) -> dict[str, float]:
    """All measures of the table above.

    Args:
        model: trained on rows of `length` tokens.
        stream: tokens that it has not seen.
        length: of the rows.
    """
    model.eval()
    stream = stream[:TOKENS].to(model.device)
    longest = min(len(stream), model.config.max_position_embeddings)  # learned positions end there
    measures = {
        f"loss_{times}": loss_at(model, stream, times * length) for times in LENGTHS if times * length <= longest
    }
    if "loss_16" in measures:
        with slow_rotation(model):
            measures["slow_loss_16"] = loss_at(model, stream, 16 * length)
            measures["slow_growth_16"] = measures["slow_loss_16"] - loss_at(model, stream, length)
    measures |= attention_measures(model, windows(stream, length)[:64])
    if longest >= 8 * length:
        # of the same text
        long = attention_measures(model, windows(stream[: 64 * length], 8 * length))
        measures["survivor_growth"] = long["survivors"] / max(measures["survivors"], 1e-9)
    if len(stream) > 2 * FAR and longest > FAR + _SENTENCE:
        measures[f"recall_{FAR}"] = recall_at(model, stream, FAR)
    return measures
