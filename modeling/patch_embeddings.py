# Copyright 2026 the reluformers authors
# SPDX-License-Identifier: Apache-2.0
"""Images as sequences: patches, their positions on a grid, the class token and registers."""

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import initialization as init

from ..configuration.configuration_vision import VisionTransformerConfig
from .kernels import apply_dropout
from .normalization import at_least_float32

CLS_TOKEN_STD = 0.02


def sincos2d_table(rows: int, columns: int, dim: int) -> Tensor:
    r"""Fixed positions of a grid, computed in float64    [rows · columns, dim].

    The vector at column x and row y is [sin xω, cos xω, sin yω, cos yω] with ω_m = 10000^(−m/(d/4−1)), m < d/4
    (Chen et al. 2021, as big_vision orders it).

    Args:
        rows, columns: of the grid.
        dim: d, a multiple of 4.
    """
    quarter = dim // 4
    exponents = torch.arange(quarter, dtype=torch.float64, device="cpu") / max(quarter - 1, 1)
    frequencies = 10000.0**-exponents  # The frequencies have the shape [d / 4].
    x = torch.arange(columns, dtype=torch.float64, device="cpu").repeat(rows)[:, None] * frequencies
    y = torch.arange(rows, dtype=torch.float64, device="cpu").repeat_interleave(columns)[:, None] * frequencies
    return torch.cat([x.sin(), x.cos(), y.sin(), y.cos()], dim=-1)


class PatchEmbeddings(nn.Module):
    """Patches mapped to the width of the model, with positions; before them perhaps the class token and registers.

    Those in front have positions with `prefix_positions` (ViT), else none (big_vision). They start from N(0, 0.02),
    not from big_vision's 0, where relu weights and the unit vectors of QKNorm have no usable gradient.
    """

    def __init__(self, config: VisionTransformerConfig):
        super().__init__()
        self.grid_size, self.dropout, width = config.grid_size, config.dropout, config.hidden_size
        self.patch_size = config.patch_size
        self.projection = nn.Conv2d(config.num_channels, width, kernel_size=self.patch_size, stride=self.patch_size)
        self.cls_token = nn.Parameter(torch.empty(1, 1, width)) if config.pooling == "cls" else None
        registers = torch.empty(1, config.num_register_tokens, width)
        self.register_tokens = nn.Parameter(registers) if config.num_register_tokens else None
        self.num_placed_prefix = config.num_prefix_tokens if config.prefix_positions else 0
        positions = torch.empty(1, self.num_placed_prefix + self.grid_size[0] * self.grid_size[1], width)
        self.is_learned = config.position_embedding_type == "learned"
        if self.is_learned:
            self.position_embeddings = nn.Parameter(positions)
        else:
            # Sinusoidal positions follow from a formula, so no file has to hold them.
            self.register_buffer("position_embeddings", positions, persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Positions, N(0, 1/√d) or the fixed table, class token and registers."""
        width = self.position_embeddings.shape[-1]
        if self.is_learned:
            init.normal_(self.position_embeddings, std=width**-0.5)
        else:
            init.copy_(self.position_embeddings, sincos2d_table(*self.grid_size, width)[None])
        for token in self._prefix():
            init.normal_(token, std=CLS_TOKEN_STD)

    def forward(self, pixel_values: Tensor, interpolate_pos_encoding: bool = True) -> Tensor:
        """Tokens [batch, length, hidden_size] of images [batch, channels, height, width]."""
        self._check(pixel_values, interpolate_pos_encoding)
        # Embeddings of patches are [batch, width, rows, columns].
        patches = self.projection(pixel_values.to(self.projection.weight.dtype))
        # Under autocast patches have half precision and positions do not; the residual stream keeps the precision of
        # positions.
        hidden_states = patches.flatten(2).transpose(1, 2) + self.positions(*patches.shape[2:])
        if prefix := self._prefix():
            tokens = torch.cat(prefix, dim=1)
            if self.num_placed_prefix:
                tokens = tokens + self.position_embeddings[:, : self.num_placed_prefix]
            tokens = tokens.to(hidden_states.dtype).expand(hidden_states.shape[0], -1, -1)
            hidden_states = torch.cat([tokens, hidden_states], dim=1)
        return apply_dropout(hidden_states, self.dropout, self.training)

    def _prefix(self) -> list[Tensor]:
        """The tokens in front of the patches, [1, number, hidden_size] each."""
        return [token for token in (self.cls_token, self.register_tokens) if token is not None]

    def positions(self, rows: int, columns: int) -> Tensor:
        """Positions of a grid [1, rows · columns, hidden_size]; learned ones bicubic between those of the own grid."""
        positions = self.position_embeddings[:, self.num_placed_prefix :]
        if (rows, columns) == self.grid_size:
            return positions
        # The formula of sinusoidal positions holds for every grid, so there is nothing to interpolate.
        if not self.is_learned:
            table = sincos2d_table(rows, columns, positions.shape[-1])
            return table[None].to(positions.device, positions.dtype)
        grid = at_least_float32(positions.unflatten(1, self.grid_size)).permute(0, 3, 1, 2)
        grid = functional.interpolate(grid, size=(rows, columns), mode="bicubic", align_corners=False)
        return grid.flatten(2).transpose(1, 2).to(positions.dtype)

    def _check(self, pixel_values: Tensor, interpolate_pos_encoding: bool) -> None:
        (height, width), side = pixel_values.shape[2:], self.patch_size
        if height % side or width % side or not height * width:
            raise ValueError(f"an image is {height} x {width} pixels, but must be in multiples of patch_size ({side})")
        rows, columns = self.grid_size
        if not interpolate_pos_encoding and (height // side, width // side) != self.grid_size:
            raise ValueError(
                f"an image is {height} x {width} pixels, but the model's positions are for {rows * side} x "
                f"{columns * side}: resize the image, or allow interpolate_pos_encoding"
            )
