"""What each process sends and computes where several share a sequence: our gathered keys beside PyTorch's ring.

Both attend causally forwards and backwards, on CPUs through gloo. Bytes are counted at the collectives that run, and
products at the attention functions that are called: a product is one score of a query and a key that it may see.
PyTorch's ring has no function for CPUs by itself; here it gets that of PyTorch's attention on CPUs.

Example:
    torchrun --nproc_per_node 4 research/benchmarks/context_parallel.py --length 4096
"""

import argparse
from collections import Counter
from collections.abc import Callable
from time import process_time

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental._context_parallel import _attention as ring
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from reluformers.modeling.attention import AttentionMask
from reluformers.modeling.attention_interface import InterfaceAttention
from reluformers.modeling.context_parallel import own_mask, own_rows, sequence_on

FORWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


class Collectives(TorchDispatchMode):
    """Counts the bytes that reach this process from the others."""

    def __init__(self) -> None:
        super().__init__()
        self.received = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        output = function(*args, **(kwargs or {}))
        number = dist.get_world_size()
        name = function.name().partition("::")[2]
        if name in ("all_gather_into_tensor", "reduce_scatter_tensor"):
            self.received += max(args[0].nbytes, output.nbytes) * (number - 1) // number
        elif name == "all_to_all_single":  # by which the ring sends a block to the next process
            self.received += output.nbytes
        return output


def products_of(query: Tensor, key: Tensor, is_causal: bool) -> int:
    """Scores of one call of PyTorch's function."""
    pairs = query.shape[2] * key.shape[2]
    return query.shape[0] * query.shape[1] * ((pairs + query.shape[2]) // 2 if is_causal else pairs)


def ring_of_softmax(query: Tensor, key: Tensor, value: Tensor, grad: Tensor, counts: Counter) -> list[Tensor]:
    def forward(query, key, value, is_causal):
        counts["products"] += products_of(query, key, is_causal)
        return FORWARD(query, key, value, 0.0, is_causal)

    def backward(query, key, value, out, logsumexp, is_causal, grad_out):
        return BACKWARD(grad_out, query, key, value, out, logsumexp, 0.0, is_causal)

    inputs = {"query": query, "key": key, "value": value, "is_causal": True}
    output, logs = ring._templated_ring_attention(dist.group.WORLD, 2, forward, **inputs)
    counts["kept"] = sum(part.nbytes for part in (query, key, value, output, logs))
    names = {"grad_out": grad, "grad_out_name": "grad_out", "out": output, "logsumexp": logs}
    return [output, *ring._templated_ring_attention_backward(dist.group.WORLD, 2, backward, **names, **inputs)]


def gathered(attention: InterfaceAttention) -> Callable[..., list[Tensor]]:
    def attend(query: Tensor, key: Tensor, value: Tensor, grad: Tensor, counts: Counter) -> list[Tensor]:
        length = query.shape[2] * dist.get_world_size()
        mask = own_mask(AttentionMask(length, length, query.device, causal_offset=0))
        counts["products"] += int(mask.key_counts.sum()) * query.shape[0] * query.shape[1]
        inputs = [part.detach().requires_grad_() for part in (query, key, value)]
        kept = {}

        def keep(part: Tensor) -> Tensor:
            kept[part.untyped_storage().data_ptr()] = part.untyped_storage().nbytes()
            return part

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda part: part):
            output = attention(attention, *inputs, mask)[0].transpose(1, 2)
        counts["kept"] = sum(kept.values())
        return [output, *torch.autograd.grad(output, inputs, grad)]

    return attend


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=4096, help="tokens of the whole sequence")
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--width", type=int, default=64, help="of a head")
    parser.add_argument("--rounds", type=int, default=3, help="of which the fastest counts")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    whole = torch.randn(4, 1, arguments.heads, arguments.length, arguments.width).unbind()
    parts = [own_rows(part, 2, mesh) for part in whole]
    expected = own_rows(functional.scaled_dot_product_attention(*whole[:3], is_causal=True), 2, mesh)
    candidates = {"ring of softmax": ring_of_softmax}
    candidates |= {
        name: gathered(InterfaceAttention(name)) for name in ("softmax", "relu-vit", "relu-sum", "entmax15")
    }
    for name, attend in candidates.items():
        times = []
        with sequence_on(mesh):
            for _ in range(arguments.rounds):
                counts = Counter()
                collectives = Collectives()
                start = process_time()
                with collectives:
                    result = attend(*parts, counts)
                times.append(process_time() - start)
        if "softmax" in name:
            torch.testing.assert_close(result[0], expected, rtol=1e-4, atol=1e-4)
        row = f"{collectives.received / 1e6:8.2f} MB received, {counts['kept'] / 1e6:8.2f} MB kept"
        row = f"{row}, {counts['products'] / 1e6:7.2f} million products, {min(times):6.2f} s of the processor"
        rows = [None] * dist.get_world_size()
        dist.all_gather_object(rows, row)
        if dist.get_rank() == 0:
            for rank, text in enumerate(rows):
                print(f"{name:16} process {rank}: {text}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
