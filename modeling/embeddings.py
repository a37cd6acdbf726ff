# Copyright 2026 the reluformers authors
# SPDX-License-Identifier: Apache-2.0
"""Fixed positions of tokens."""

import torch
from torch import Tensor, nn
from transformers import initialization as init


class SinusoidalPositions(nn.Module):
    r"""Fixed sinusoids of position t: sin(t·ω_i) and cos(t·ω_i), in one of four published layouts.

    `"sinusoidal"`: channels 2i and 2i+1 are sine and cosine of ω_i = 10000^(−2i/d) (Vaswani et al. 2017, section 3.5).
    `"sinusoidal_halves"`: first half sines, second half cosines of ω_i = 10000^(−i/(d/2−1)) (tensor2tensor; ReLA).
    `"sinusoidal_marian"`: halves as in the second, ω_i as in the first (Marian, as transformers has it).
    `"sinusoidal_sine"`: as the first, but sine in both channels (the released QKNorm code).
    """

    def __init__(self, max_positions: int, dim: int, layout: str = "sinusoidal"):
        super().__init__()
        self.max_positions, self.dim, self.layout = max_positions, dim, layout
        self.register_buffer("table", torch.empty(max_positions, dim), persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Fill the table; models are built on the meta device, so that this runs again when one is loaded."""
        init.copy_(self.table, self.compute_table())

    def compute_table(self) -> Tensor:
        """All positions, computed in float64    [max_positions, dim]."""
        half = self.dim // 2
        steps = torch.arange(half, dtype=torch.float64, device="cpu")
        exponents = steps / max(half - 1, 1) if self.layout == "sinusoidal_halves" else 2 * steps / self.dim
        positions = torch.arange(self.max_positions, dtype=torch.float64, device="cpu")
        angles = positions[:, None] * 10000.0**-exponents  # The angles of positions are [max_positions, dim / 2].
        if self.layout in ("sinusoidal_halves", "sinusoidal_marian"):
            return torch.cat([angles.sin(), angles.cos()], dim=-1)
        second = angles.sin() if self.layout == "sinusoidal_sine" else angles.cos()
        return torch.stack([angles.sin(), second], dim=-1).flatten(1)

    def forward(self, positions: Tensor) -> Tensor:  # Positions [..., length] become embeddings [..., length, dim].
        return nn.functional.embedding(positions, self.table)
