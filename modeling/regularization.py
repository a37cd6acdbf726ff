# Copyright 2026 the reluformers authors
# SPDX-License-Identifier: Apache-2.0
"""Row statistics of attention weights: the regulariser of ReLUFormer and the null rate of ReLA."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from .attention_functions import length_factor
from .normalization import at_least_float32

# sums of rows and of weighted logs, None where they are not needed
RowTensors = tuple[Tensor | None, Tensor | None]
# index of each of the regulariser's sums
NORMALIZATION, ENTROPY, NULL_ROWS, ROWS = range(4)


@dataclass
class RowStatistics:
    r"""Sums over the weights s_ij of each row, before dropout, in at least float32 [batch, heads, query_len].

    Args:
        row_sums: Σ_j s_ij.
        weighted_logs: Σ_j s_ij·log s_ij, with 0·log 0 = 0; the entropy of p = s/Σs is log Σs − Σ s·log s / Σs.
    """

    row_sums: Tensor
    weighted_logs: Tensor | None = None

    @classmethod
    def of(cls, weights: Tensor, needed: str) -> "RowStatistics | None":
        """Sum what is needed, `"none"`, `"sums"` or `"all"`, of weights [batch, heads, query_len, key_len]."""
        if needed == "none":
            return None
        weights = at_least_float32(weights)
        if needed == "sums":
            return cls(weights.sum(-1))
        # log of the clamped weight: at s = 0 the product is 0 and its gradient finite, which xlogy's is not
        logs = weights.clamp_min(torch.finfo(weights.dtype).tiny).log()
        return cls(weights.sum(-1), (weights * logs).sum(-1))

    @classmethod
    def stack(cls, layers: "list[RowTensors]") -> "RowStatistics | None":
        """Stack the `tensors_of` all layers [layers, batch, heads, query_len], on the device of the last."""
        # a layer may be computed by another model's attention
        layers = [tensors for tensors in layers if tensors[0] is not None]
        if not layers:
            return None
        device = layers[-1][0].device
        return cls(
            *(
                None if parts[0] is None else torch.stack([part.to(device) for part in parts])
                for parts in zip(*layers, strict=True)
            )
        )

    @classmethod
    def join(cls, parts: "list[RowStatistics | None]") -> "RowStatistics | None":
        """Join the statistics of queries that were computed in parts."""
        if parts[0] is None:
            return None
        sums, logs = zip(*((part.row_sums, part.weighted_logs) for part in parts), strict=True)
        return cls(torch.cat(sums, dim=-1), None if logs[0] is None else torch.cat(logs, dim=-1))


def tensors_of(rows: RowStatistics | None) -> RowTensors:
    """Take statistics apart, as layers return them: reentrant checkpoints see flat tuples of tensors alone."""
    return (None, None) if rows is None else (rows.row_sums, rows.weighted_logs)


def regularizer_sums(
    rows: RowStatistics,
    key_counts: Tensor | int,
    query_mask: Tensor | None,
    entropy_bound: float | None,
    coefficient: float = 1.0,
    exponent: float = 0.0,
) -> Tensor:
    r"""Sums over the rows of real queries of all layers of a site, so that sites of different sizes add to one mean.

    With p = s_i / Σ_j s_ij the terms are |log Σ_j s_ij| and max(H(p) − C_i, 0), C_i = entropy_bound · log n_i
    (ReLUFormer, eq. 7 and App. A.2). A null row (Σ = 0) gives 0 to both and has no gradient.

    Args:
        rows: of the weights before dropout [..., batch, heads, query_len]; its `weighted_logs` are needed with an
            entropy bound.
        key_counts: n_i, one number or broadcasting to [batch, heads, query_len, 1].
        query_mask: bool, True = real query [batch, query_len], or None for all.
        entropy_bound: C_i / log n_i; None leaves both terms 0 and counts rows only.
        coefficient, exponent: c and α of weights that are not divided by c·n_i^α yet; H(p) does not depend on it.

    Returns:
        [4], at least float32: Σ normalisation term, Σ entropy term, number of null rows, number of rows.
    """

    row_sums = rows.row_sums
    is_used = row_sums != 0
    if query_mask is None:
        number = row_sums.new_full((), row_sums.numel())
    else:
        is_real = query_mask[:, None].to(row_sums.device)
        is_used, number = is_used & is_real, is_real.expand_as(row_sums).sum().to(row_sums.dtype)
    if entropy_bound is None:
        normalization = entropy_excess = row_sums.new_zeros(())
    else:
        log_counts, is_unused = length_factor(key_counts, "log_length", 1, row_sums.dtype), ~is_used
        if isinstance(log_counts, Tensor):
            log_counts = log_counts.squeeze(-1).to(row_sums.device)
        safe_sums = row_sums.masked_fill(is_unused, 1.0)
        log_sums = safe_sums.log()
        entropy = log_sums - rows.weighted_logs / safe_sums
        excess = entropy - entropy_bound * log_counts
        entropy_excess = functional.relu(excess.masked_fill(is_unused, 0.0)).sum()
        if (coefficient, exponent) != (1, 0):
            log_sums = (log_sums - (exponent * log_counts + math.log(coefficient))).masked_fill(is_unused, 0.0)
        normalization = log_sums.abs().sum()  # log 1 = 0 where a row is not used
    return torch.stack([normalization, entropy_excess, number - is_used.sum(), number])


def add_regularizer_sums(parts: list[Tensor | None]) -> Tensor | None:
    """Sum of the sums that there are, on the device of the last; None if there are none."""
    parts = [part for part in parts if part is not None]
    return torch.stack([part.to(parts[-1].device) for part in parts]).sum(0) if parts else None
