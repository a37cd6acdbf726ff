"""How sparse, how empty and how spread out the attention of a model is, by site and layer."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from transformers import PreTrainedModel

from reluformers.attention_statistics import AttentionReport, AttentionStatistics, SiteStatistics

# site → fields of a model's output that may hold its weights
_FIELDS = {
    "encoder": ("encoder_attentions", "attentions"),
    "decoder": ("decoder_attentions",),
    "cross": ("cross_attentions",),
}
_INPUTS = ("pixel_values", "input_ids", "attention_mask", "labels")


def attention_report(model: PreTrainedModel, batches: Iterable[Mapping[str, torch.Tensor]]) -> AttentionReport:
    """Measure the attention weights of forward passes, of translation models with teacher forcing.

    Over all heads, with s_ij the weight of visible key j for real query i, Σ_i = Σ_j s_ij and p_ij = s_ij / Σ_i:
        zeros     share of s_ij that are exactly 0 among the visible pairs (ReLUFormer T3, sparsity of ReLA F3)
        null_rate share of rows i without any weight (ReLA F6)
        entropy   mean of H(p_i) = −Σ_j p_ij log p_ij in nats over the rows with Σ_i > 0 (ReLUFormer §4.2, T3)
        row_sum   mean of Σ_i (1 for softmax; what the regulariser of ReLUFormer, eq. 7, pulls to 1)
    A pair is visible when its query is real (no padding) and its key neither padding nor in the future. `entropy`
    leaves out rows with a negative weight, for which H has no meaning, and is None when no row is left.

    Args:
        model: an encoder–decoder or a vision model; it is evaluated with the eager attention, which returns weights,
            and left in the mode it came in.
        batches: dicts with `input_ids` [batch, source_len], `labels` [batch, target_len] (−100 = padding) and, where
            there is padding, `attention_mask` [batch, source_len] (1 = real); or with `pixel_values` [batch, channels,
            height, width], where all pairs are visible.

    Returns:
        The report: of translation models the sites "encoder", "decoder" and "cross", of vision models "encoder" alone.
        Every row weighs the same, whatever its layer.

    Raises:
        ValueError: there are no batches, a batch lacks its inputs, or the model returns no attention weights.
    """
    totals: dict[str, torch.Tensor] = {}
    with _eager_evaluation(model), torch.inference_mode():
        for batch in batches:
            for site, sums in _batch_sums(model, batch).items():
                totals[site] = totals[site] + sums if site in totals else sums
    if not totals:
        raise ValueError("There are no batches to measure the attention on.")
    sites = {
        site: SiteStatistics([_statistics(layer) for layer in sums], _statistics(sums.sum(0)))
        for site, sums in totals.items()
    }
    return AttentionReport(sites, _statistics(sum(sums.sum(0) for sums in totals.values())))


def weight_sums(weights: torch.Tensor, visible: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    """Sum what the statistics of one layer are made of.

    Args:
        weights: attention weights [batch, heads, query_len, key_len].
        visible: bool [batch, query_len, key_len], True = real query and visible key.
        real: bool [batch, query_len], True = real query.

    Returns:
        float64 [7] on the CPU: visible pairs, zeros among them, real rows, null rows, rows with an entropy, sum of
        their entropies, sum of all row sums.
    """
    heads = weights.shape[1]
    visible, real = visible.unsqueeze(1), real.unsqueeze(1)
    # weights are summed where they are, in float32: not every device has float64
    weights = weights.float().masked_fill(~visible, 0.0)
    row_sums = weights.sum(-1)  # [batch, heads, query_len]
    null = real & (weights == 0).all(-1)
    spread = real & (row_sums > 0) & (weights >= 0).all(-1)
    shares = weights / row_sums.masked_fill(~spread, 1.0).unsqueeze(-1)
    entropies = torch.special.entr(shares).sum(-1).masked_fill(~spread, 0.0)
    counts = (
        visible.sum() * heads,
        (visible & (weights == 0)).sum(),
        real.sum() * heads,
        null.sum(),
        spread.sum(),
        entropies.sum(-1).cpu().double().sum(),
        row_sums.masked_fill(~real, 0.0).sum(-1).cpu().double().sum(),
    )
    return torch.stack([count.cpu().double() for count in counts])


def format_attention_report(report: AttentionReport) -> str:
    """The report as a table with a line for each layer, each site and all sites together."""
    lines = [f"{'site':<8} {'layer':>7} {'zeros %':>8} {'null %':>8} {'entropy':>8} {'row sum':>8}"]
    for site, statistics in report.sites.items():
        lines += [_table_line(site, str(layer), row) for layer, row in enumerate(statistics.layers)]
        lines.append(_table_line(site, "all", statistics.overall))
    lines.append(_table_line("all", "all", report.overall))
    return "\n".join(lines)


def _table_line(site: str, layer: str, row: AttentionStatistics) -> str:
    entropy = "-" if row.entropy is None else f"{row.entropy:.3f}"
    return f"{site:<8} {layer:>7} {100 * row.zeros:>8.2f} {100 * row.null_rate:>8.2f} {entropy:>8} {row.row_sum:>8.3f}"


@contextmanager
def _eager_evaluation(model: PreTrainedModel) -> Iterator[None]:
    """Put the model in evaluation mode with the attention that returns weights, and back."""
    training, implementation = model.training, model.config._attn_implementation
    model.eval()
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(implementation)
        model.train(training)


def _batch_sums(model: PreTrainedModel, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Run one batch; return float64 [layers, 7] for each site."""
    if "pixel_values" not in batch and batch.get("labels") is None:
        raise ValueError(f"A batch needs input_ids and labels, or pixel_values, got {sorted(batch)}.")
    inputs = {name: batch[name].to(model.device) for name in _INPUTS if name in batch}
    if "pixel_values" in inputs:  # no weight hangs on the classes
        masks, options = {}, {"pixel_values": inputs["pixel_values"]}
    else:
        masks, options = _text_masks(inputs), {**inputs, "use_cache": False}
    outputs = model(**options, output_attentions=True, return_dict=True)
    sums = {}
    for site in masks or ["encoder"]:
        layers = next((layers for field in _FIELDS[site] if (layers := getattr(outputs, field, None))), None)
        if not layers or any(weights is None for weights in layers):
            raise ValueError(
                f"{type(model).__name__} returned no {site} attentions; the report needs an encoder–decoder model, or "
                "a vision model for pixel_values."
            )
        visible, real = masks[site] if masks else _nothing_masked(layers[0])
        sums[site] = torch.stack([weight_sums(weights, visible, real) for weights in layers])
    return sums


def _text_masks(batch: Mapping[str, torch.Tensor]) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Which pairs [batch, query_len, key_len] are visible and which queries [batch, query_len] real, for each site."""
    source = batch.get("attention_mask", torch.ones_like(batch["input_ids"])).bool()  # [batch, source_len]
    target = batch["labels"] != -100  # [batch, target_len]
    past = torch.ones(2 * target.shape[1:], dtype=torch.bool, device=target.device).tril()
    return {
        "encoder": (source.unsqueeze(2) & source.unsqueeze(1), source),
        "decoder": (target.unsqueeze(2) & target.unsqueeze(1) & past, target),
        "cross": (target.unsqueeze(2) & source.unsqueeze(1), target),
    }


def _nothing_masked(weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The masks of weights [batch, heads, query_len, key_len] without padding: every pair is visible."""
    visible = torch.ones_like(weights[:, 0], dtype=torch.bool)
    return visible, visible[..., 0]


def _statistics(sums: torch.Tensor) -> AttentionStatistics:
    """Turn summed counts into the reported shares and means."""
    pairs, zeros, rows, null, spread, entropy, row_sum = sums.tolist()
    return AttentionStatistics(
        zeros=zeros / max(pairs, 1),
        null_rate=null / max(rows, 1),
        entropy=entropy / spread if spread else None,
        row_sum=row_sum / max(rows, 1),
        rows=int(rows),
    )
