# Copyright 2026 the reluformers authors
# SPDX-License-Identifier: Apache-2.0
"""Row statistics of attention weights: the regulariser of ReLUFormer and the null rate of ReLA."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from .attention_functions import length_factor
from .normalization import at_least_float32


class RowStatistics(NamedTuple):
    r"""Sums over the weights s_ij of each row, before dropout, in at least float32 [batch, heads, query_len].

    Layers return them one by one: reentrant checkpoints see flat tuples of tensors alone. What nobody needs is None.

    Args:
        row_sums: Σ_j s_ij.
        weighted_logs: Σ_j s_ij·log s_ij, with 0·log 0 = 0; the entropy of p = s/Σs is log Σs − Σ s·log s / Σs.
    """

    row_sums: Tensor | None = None
    weighted_logs: Tensor | None = None

    @classmethod
    def of(cls, weights: Tensor, needed: str) -> "RowStatistics":
        """Sum what is needed, `"none"`, `"sums"` or `"all"`, of weights [batch, heads, query_len, key_len]."""
        if needed == "none":
            return cls()
        weights = at_least_float32(weights)
        if needed == "sums":
            return cls(weights.sum(-1))
        # Attention weights are clamped before their log, because the gradient of xlogy is not finite at s = 0.
        logs = weights.clamp_min(torch.finfo(weights.dtype).tiny).log()
        return cls(weights.sum(-1), (weights * logs).sum(-1))

    @classmethod
    def join(cls, parts: "list[RowStatistics]") -> "RowStatistics":
        """Join the statistics of queries that were computed in parts."""
        columns = zip(*parts, strict=True)
        return cls(*(None if column[0] is None else torch.cat(column, dim=-1) for column in columns))


@dataclass
class SiteRows:
    """Statistics of the rows of all layers of one site of a model, and what the regulariser has to know of these.

    Args:
        layers: `RowStatistics` of each layer that has some; the weighted logs are needed with an entropy bound.
        key_counts: n_i, one number or broadcasting to [batch, heads, query_len, 1].
        query_mask: bool, True = real query [batch, query_len], or None for all.
        coefficient, exponent: c and α of weights that are not divided by c·n_i^α yet; H(p) does not depend on it.
    """

    layers: list[tuple[Tensor, Tensor | None]]
    key_counts: Tensor | int
    query_mask: Tensor | None
    coefficient: float = 1.0
    exponent: float = 0.0

    def of_rows(self, numbers: Tensor | float) -> Tensor:
        """Repeat what broadcasts to [batch, heads, query_len] for the rows of all layers."""
        row_sums = self.layers[0][0]
        if not isinstance(numbers, Tensor):
            numbers = row_sums.new_full((), numbers)
        return numbers.expand(len(self.layers), *row_sums.shape).flatten()


def regularizer_sums(sites: list[SiteRows], entropy_bound: float | None) -> Tensor:
    r"""Sum the terms of ReLUFormer's attention regulariser over real queries of all layers and sites.

    With p = s_i / Σ_j s_ij the terms are |log Σ_j s_ij| and max(H(p) − C_i, 0), C_i = entropy_bound · log n_i
    (ReLUFormer, eq. 7 and App. A.2). A null row (Σ = 0) gives 0 to both and has no gradient.

    Args:
        sites: at least one; those that differ in c or α are summed apart.
        entropy_bound: C_i / log n_i; None leaves both terms 0 and counts rows only.

    Returns:
        [4], at least float32, on the device of the last layer: Σ normalisation term, Σ entropy term, number of null
        rows, number of rows.
    """
    divisors = {(site.coefficient, site.exponent) for site in sites}
    if len(divisors) > 1:
        parts = ([site for site in sites if (site.coefficient, site.exponent) == divisor] for divisor in divisors)
        return torch.stack([regularizer_sums(part, entropy_bound) for part in parts]).sum(0)
    device = sites[-1].layers[-1][0].device

    def joined(parts: list[Tensor]) -> Tensor:
        return torch.cat([part.flatten().to(device) for part in parts])

    sums, logs = zip(*(layer for site in sites for layer in site.layers), strict=True)
    row_sums = joined(sums)
    is_used, number = row_sums != 0, row_sums.new_full((), row_sums.numel())
    if any(site.query_mask is not None for site in sites):
        masks = [True if site.query_mask is None else site.query_mask[:, None] for site in sites]
        is_real = joined([site.of_rows(mask) for site, mask in zip(sites, masks, strict=True)]).bool()
        is_used, number = is_used & is_real, is_real.sum(dtype=row_sums.dtype)
    used = is_used.to(row_sums.dtype)
    if entropy_bound is None:
        normalization = entropy_excess = row_sums.new_zeros(())
    else:
        counts = [length_factor(site.key_counts, "log_length", 1, row_sums.dtype) for site in sites]
        counts = [part.squeeze(-1) if isinstance(part, Tensor) else part for part in counts]
        log_counts = joined([site.of_rows(part) for site, part in zip(sites, counts, strict=True)])
        safe_sums = row_sums.masked_fill(~is_used, 1.0)
        log_sums = safe_sums.log()
        excess = log_sums - joined(logs) / safe_sums - entropy_bound * log_counts
        coefficient, exponent = divisors.pop()
        if (coefficient, exponent) != (1, 0):
            log_sums = log_sums - (exponent * log_counts + math.log(coefficient))
        normalization = torch.dot(log_sums.abs(), used)
        entropy_excess = torch.dot(functional.relu(excess), used)
    return torch.stack([normalization, entropy_excess, number - used.sum(), number])
