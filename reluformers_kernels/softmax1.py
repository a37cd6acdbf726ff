# Copyright 2026 the reluformers authors
# SPDX-License-Identifier: Apache-2.0
"""Softmax off by one, exp(z) / (exp(θ) + Σ exp(z)), by PyTorch's flash attention, without a key for the 1.

With l = log Σ exp(z) of that attention, its output times σ(l − θ) is that of softmax1. Its backward pass makes weights
as exp(z − l), and needs of their sum nothing but dO·O: given l' = log(exp θ + exp l) and this output, it gives the
gradients of softmax1.
"""

import torch
from torch import Tensor
from torch.nn import functional

from .tensors import in_one_dtype, is_traced, without_autocast

aten = torch.ops.aten
_DTYPES = {"cpu": (torch.float32, torch.bfloat16, torch.float64), "cuda": (torch.bfloat16, torch.float16)}
_WIDEST = 256  # Flash attention on GPUs takes heads of at most 256 numbers, in multiples of eight.


def softmax1(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    threshold: float | Tensor,
    *,
    scale: float,
    mask: Tensor | None = None,
    is_causal: bool = False,
    dropout: float = 0.0,
) -> Tensor | None:
    """Compute softmax1 by fused code: output like the queries, in the dtype of autocast; None if no code takes them.

    Args:
        query, key, value: [batch, heads, length, width].
        threshold: θ, a number or a tensor that broadcasts to [batch, heads, query_len, 1].
        scale: of the products q·k.
        mask: bool, True = visible, that broadcasts to [batch, heads, query_len, key_len]; None for all.
        is_causal: whether query i sees the keys j ≤ i alone; not beside a mask.
        dropout: share of weights dropped.
    """
    query, key, value = in_one_dtype(query, key, value)
    states = (query, key, value)
    device = query.device.type
    if is_traced() or query.dtype not in _DTYPES.get(device, ()) or query.shape[-1] != value.shape[-1]:
        return None
    if any(part.numel() == 0 or part.stride(-1) != 1 or type(part) is not Tensor for part in states):
        return None
    if device == "cpu":
        is_known = dropout == 0
    else:
        width = query.shape[-1]
        is_known = mask is None and width % 8 == 0 and width <= _WIDEST
        is_known = is_known and torch.cuda.get_device_capability(query.device) >= (8, 0)
    if not is_known:
        return None
    # Hidden scores get the lowest finite number, so that a row without a visible key stays finite.
    if mask is not None:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill(~mask, torch.finfo(query.dtype).min)
    return _Softmax1.apply(*states, threshold, scale, mask, (dropout, is_causal))


class _Softmax1(torch.autograd.Function):
    @staticmethod
    def forward(ctx, query, key, value, threshold, scale, mask, options) -> Tensor:
        ctx.options = options
        states = (query, key, value)
        with without_autocast(query.device.type):
            if query.device.type == "cpu":
                flash = aten._scaled_dot_product_flash_attention_for_cpu
                ctx.others = ()
                output, logs = flash(*states, *ctx.options, attn_mask=mask, scale=scale)
            else:
                flash = aten._scaled_dot_product_flash_attention
                output, logs, *ctx.others, _ = flash(*states, *ctx.options, scale=scale)
        is_tensor = isinstance(threshold, Tensor)
        ctx.scale = scale
        number = threshold.to(logs.dtype).squeeze(-1) if is_tensor else threshold
        excess = logs - number if is_tensor or number != 0 else logs
        output = (output * torch.sigmoid(excess)[..., None]).to(query.dtype)
        logs = functional.softplus(excess, threshold=40)
        logs = logs + number if is_tensor or number != 0 else logs
        ctx.save_for_backward(*states, output, logs, mask, threshold if is_tensor else None)
        return output

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_output) -> tuple[Tensor | None, ...]:
        query, key, value, output, logs, mask, threshold = ctx.saved_tensors
        inputs = (grad_output, query, key, value, output, logs)
        with without_autocast(query.device.type):
            if query.device.type == "cpu":
                run = aten._scaled_dot_product_flash_attention_for_cpu_backward
                grads = run(*inputs, *ctx.options, attn_mask=mask, scale=ctx.scale)
            else:
                run = aten._scaled_dot_product_flash_attention_backward
                *lengths, seed, offset = ctx.others
                grads = run(*inputs, *lengths, *ctx.options, seed, offset, scale=ctx.scale)
        grad_threshold = None
        if threshold is not None and ctx.needs_input_grad[3]:
            # `share` is what the 1 in the denominator takes from each row's sum of weights.
            share = torch.exp(threshold.to(logs.dtype) - logs[..., None])
            grad = -share * (grad_output * output).to(logs.dtype).sum(-1, keepdim=True)
            grad_threshold = grad.sum_to_size(threshold.shape).to(threshold.dtype)
        return *grads, grad_threshold, None, None, None
