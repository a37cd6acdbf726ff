# Copyright 2026 the reluformers authors
# SPDX-License-Identifier: Apache-2.0
"""Compiled code for processors: attention with an elementwise φ, and the norms of queries, keys and outputs.

`attention.c` and `norms.c` compute what the models' code in PyTorch does. setup.py builds them once for each set of
instructions, where there is a C compiler, and torch's own threads run them by `torch_parallel_for` of its stable
interface. This package knows tensors and the operators' options alone, so that every copy of the models' code can use
it, whichever version wrote it: see `INTERFACE`.
"""

import ctypes
import functools
import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

# Callers ask for the interface number, which counts up when arguments of the functions of native/ change.
INTERFACE = 6
LAYOUT = 9  # The layout number of the structures in C counts up with `layout` of attention.c when a field changes.
VARIABLE = "RELUFORMERS_NATIVE"  # The environment variable RELUFORMERS_NATIVE holds an instruction set, or "off".
# Each instruction set is listed with the capabilities of `torch.cpu.get_capabilities` that it needs. The fastest comes
# first: the first usable one wins.
INSTRUCTION_SETS = {
    "avx512_bf16": ("avx512_f", "avx512_bw", "avx512_vl", "avx512_bf16", "avx512_vnni", "fma3"),
    "avx512": ("avx512_f", "fma3"),
    "avx2": ("avx2", "fma3"),
    "bf16": ("bf16", "dot"),  # The sets `bf16` and `dotprod` are for ARM.
    "dotprod": ("dot",),
    "generic": (),
}
BY_NAME = "amx"  # AMX is chosen by the environment variable alone, because it was tested in emulation and never timed.
INSTRUCTION_SETS[BY_NAME] = (*INSTRUCTION_SETS["avx512_bf16"], "amx_tile", "amx_bf16")
# The activations have the order of vectors.h, because C gets an index.
ACTIVATIONS = ("relu", "relu2", "relu6", "leaky_relu", "gelu", "softplus", "sigmoid", "identity")
DTYPES = (torch.float32, torch.bfloat16)
MAX_HEAD_DIM = 256
_ROWS_OF_A_TASK = 256  # A head is split into tasks of at least 256 rows.
_TASKS_OF_A_THREAD = 8
_MOST_LANES = 16  # The widest vector of a CPU, of 512 bits, holds 16 float32 numbers.
_DROPPED_ROW = 4096  # Dropout takes a tensor as rows of 4,096 numbers, as attention.c does.
# The statistics of attention have a number for each row of queries.
_STATISTICS = (
    "found_thresholds",
    "row_sums",
    "weighted_logs",
    "nonzeros",
    "grad_row_sums",
    "grad_weighted_logs",
)
# Each function in C that needs scratch memory has another that says how much a part of the work needs.
_SCRATCH_OF = {
    "forward": "forward_scratch",
    "backward": "backward_scratch",
    "norm_backward": "norm_scratch",
    "translate": "translate_scratch",
}


def _fields(pointers: str = "", integers: str = "", floats: str = "", flags: str = "") -> list[tuple[str, type]]:
    kinds = {ctypes.c_void_p: pointers, ctypes.c_int64: integers, ctypes.c_float: floats, ctypes.c_int32: flags}
    return [(name, kind) for kind, names in kinds.items() for name in names.split()]


class _States(ctypes.Structure):
    _fields_ = [*_fields("data", "batch head row groups group"), *_fields("pages", "pages_stride page_len")]

    @classmethod
    def of(cls, states: Tensor, dtype: torch.dtype, groups: int = 1) -> "_States":
        """Pointer and strides; of queries, whose `groups` heads share a head of keys, as rows of each position."""
        pages = getattr(states, "pages", None)
        if pages is not None:
            of_cache = cls.of(states.cache, dtype)
            of_cache.pages, of_cache.pages_stride = pages.data_ptr(), pages.stride(0)
            of_cache.page_len = states.cache.shape[2]
            return of_cache
        if states.dtype != dtype or not states.is_cpu or (states.shape[-1] > 1 and states.stride(-1) != 1):
            raise ValueError(f"states are {_describe(states)}, but must be rows of {dtype} on the CPU")
        batch, head, row = (stride * states.element_size() for stride in states.stride()[:3])
        return cls(states.data_ptr(), batch, head * groups, row, groups, head)


class Structure(ctypes.Structure):
    """What compiled functions read, as they trust every pointer and size: `keep` checks each tensor that crosses.

    `MEMORY` says for each pointer the dtype of the numbers, None for that of `is_bfloat16`, and how many C reads or
    writes there.
    """

    MEMORY: ClassVar[dict[str, tuple[torch.dtype | None, Callable[[Any], int]]]] = {}

    @classmethod
    def of(cls, **values) -> "Structure":
        """Set fields and pointers; a number that is no field is a size that `MEMORY` needs."""
        made = cls()
        for name, value in values.items():
            if value is not None and not isinstance(value, Tensor):
                setattr(made, name, value)
        made.keep(**{name: value for name, value in values.items() if isinstance(value, Tensor)})
        return made

    def keep(self, **tensors: Tensor | None) -> None:
        """Set pointers, and hold the memory for as long as this lives, whatever a parameter is given meanwhile.

        Raises:
            ValueError: a tensor has another dtype or device than C reads, or fewer numbers.
        """
        for name, tensor in tensors.items():
            if tensor is None:
                continue
            dtype, count = self.MEMORY[name]
            if dtype is None:
                dtype = torch.bfloat16 if self.is_bfloat16 else torch.float32
            # The tensor is an alias of a parameter, whose memory must live on if another thread gives the parameter
            # other memory.
            tensor = tensor.detach().contiguous()
            if tensor.dtype != dtype or not tensor.is_cpu or tensor.numel() < count(self):
                raise ValueError(f"{name} is {_describe(tensor)}, but must be {count(self)} of {dtype} on the CPU")
            setattr(self, name, tensor.data_ptr())
            setattr(self, f"_{name}", tensor)

    def run(self, name: str, parts: int) -> None:
        """Call a function for the numbers of all parts, on torch's threads."""
        if parts == 0:
            return
        library = _library(instruction_set())
        parallel_for = _parallel_for()
        address = ctypes.addressof(self)
        if name in _SCRATCH_OF:
            self.scratch_size = getattr(library, _SCRATCH_OF[name])(address)
            self._scratch = torch.empty(parts * self.scratch_size, dtype=torch.float32, device="cpu")
            self.scratch = self._scratch.data_ptr()
        if parallel_for(0, parts, 1, getattr(library, name), address):
            raise RuntimeError(f"torch_parallel_for could not run {name} in {parts} parts")


def _describe(tensor: Tensor) -> str:
    return f"{tensor.dtype} {list(tensor.shape)} on {tensor.device}"


def _of_positions(stride: str) -> Callable[[Any], int]:
    """Count numbers of query positions [batch, positions], or [1, positions] where that stride is 0."""
    return lambda call: call.query_len // call.rows_per_position * (call.batch if getattr(call, stride) else 1)


def _of_rows(call: "_Call") -> int:
    return call.batch * call.heads * call.query_len


class _Call(Structure):
    """`Call` of attention.c."""

    _fields_ = [
        *((name, _States) for name in ("query", "key", "value", "output")),
        *((f"grad_{name}", _States) for name in ("output", "query", "key", "value")),
        *_fields(
            "row_factors key_padding_mask first_keys last_keys row_thresholds found_thresholds row_sums weighted_logs "
            "nonzeros grad_row_sums grad_weighted_logs grad_threshold grad_row_thresholds scratch",
            "scratch_size batch heads query_len key_len width value_width splits causal_offset rows_per_position "
            "row_factor_stride first_key_stride last_key_stride threshold_batch threshold_head threshold_position "
            "next_task",
        ),
        ("seed", ctypes.c_uint64),
        *_fields(floats="scale threshold dropout", flags="activation is_bfloat16"),
    ]
    MEMORY: ClassVar = {
        "row_factors": (torch.float32, _of_positions("row_factor_stride")),
        "key_padding_mask": (torch.bool, lambda call: call.batch * call.key_len),
        "first_keys": (torch.int32, _of_positions("first_key_stride")),
        "last_keys": (torch.int32, _of_positions("last_key_stride")),
        **dict.fromkeys(_STATISTICS, (torch.float32, _of_rows)),
        "grad_threshold": (torch.float32, lambda call: call.splits * call.batch * call.heads),
        "grad_row_thresholds": (torch.float32, lambda call: call.splits * _of_rows(call)),
    }

    @classmethod
    def of(cls, query: Tensor, key: Tensor, value: Tensor, options) -> "_Call":
        """Fill what both passes of attention in C need."""
        batch, heads, key_len, width = key.shape
        query_len = query.shape[2]
        groups = max(1, query.shape[1] // max(1, heads))  # `groups` heads of queries share each head of keys.
        if value.shape[:3] != key.shape[:3] or query.shape != (batch, heads * groups, query_len, width):
            raise ValueError(f"shapes of states do not fit: {[list(states.shape) for states in (query, key, value)]}")
        call = cls(
            _States.of(query, query.dtype, groups),
            _States.of(key, query.dtype),
            _States.of(value, query.dtype),
            batch=batch,
            heads=heads,
            query_len=query_len * groups,
            key_len=key_len,
            width=width,
            value_width=value.shape[3],
            rows_per_position=groups,
        )
        if options.row_factors is not None:
            call.row_factor_stride = query_len if len(options.row_factors) > 1 else 0
        call.keep(key_padding_mask=options.key_padding_mask, row_factors=_as_float32(options.row_factors))
        if options.first_keys is not None:
            call.first_key_stride = query_len if len(options.first_keys) > 1 else 0
            call.keep(first_keys=options.first_keys.clamp(0, key_len).int())
        if options.last_keys is not None:
            call.last_key_stride = query_len if len(options.last_keys) > 1 else 0
            call.keep(last_keys=options.last_keys.clamp(-1, key_len - 1).int())
        no_offset = key_len + query_len
        offset = no_offset if options.causal_offset is None else options.causal_offset
        call.causal_offset = max(-no_offset, min(offset, no_offset))
        threshold = options.learned_threshold
        row_thresholds = options.row_thresholds
        if threshold is not None and threshold.dim() == 3:
            row_thresholds = threshold
        elif threshold is not None:
            call.threshold = threshold.item()
        else:
            call.threshold = options.threshold
        if row_thresholds is not None:
            row_thresholds = call._row_thresholds = row_thresholds.detach().float()
            call.row_thresholds, strides = row_thresholds.data_ptr(), row_thresholds.expand(query.shape[:3]).stride()
            call.threshold_batch, call.threshold_head, call.threshold_position = strides
        call.scale = options.scale
        call.dropout = options.dropout
        call.seed = options.seed.item() if options.dropout > 0 else 0
        call.activation = (*ACTIVATIONS, "step").index(options.activation)
        call.is_bfloat16 = query.dtype == torch.bfloat16
        return call

    def run(self, name: str) -> None:
        """One pass; every thread takes tasks until there are no more."""
        super().run(name, min(torch.get_num_threads(), self.batch * self.heads * self.splits))


class _Norm(Structure):
    """`Norm` of norms.c."""

    _fields_ = _fields(
        "input grad_output output gain gate grad_gain grad_gate scratch",
        "scratch_size rows width parts",
        "eps",
        "is_mean is_bfloat16",
    )
    MEMORY: ClassVar = {
        **dict.fromkeys(("input", "grad_output", "output"), (None, lambda norm: norm.rows * norm.width)),
        **dict.fromkeys(("gain", "gate"), (torch.float32, lambda norm: norm.width - norm.width % -_MOST_LANES)),
        **dict.fromkeys(("grad_gain", "grad_gate"), (torch.float32, lambda norm: norm.parts * norm.width)),
    }

    @classmethod
    def of(cls, states: Tensor, gain: Tensor | None, gate: Tensor | None, eps: float, is_mean: bool) -> "_Norm":
        """What both passes need."""
        norm = cls(width=states.shape[-1], rows=states.numel() // max(1, states.shape[-1]), eps=eps, is_mean=is_mean)
        norm.is_bfloat16 = states.dtype == torch.bfloat16
        norm.parts = min(torch.get_num_threads(), norm.rows)
        norm.keep(input=states, gain=_in_whole_vectors(gain), gate=_in_whole_vectors(gate))
        return norm


def norm_forward(states: Tensor, gain: Tensor | None, gate: Tensor | None, eps: float, is_mean: bool) -> Tensor:
    """y of `norm` in reluformers_kernels/norms.py; states are copied if they are not contiguous."""
    norm = _Norm.of(states, gain, gate, eps, is_mean)
    output = torch.empty_like(states, memory_format=torch.contiguous_format)
    norm.keep(output=output)
    norm.run("norm_forward", norm.parts)
    return output


def norm_backward(
    grad_output: Tensor, states: Tensor, gain: Tensor | None, gate: Tensor | None, eps: float, is_mean: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Gradients of x, and float32 of g and w, or None where there is none."""
    norm = _Norm.of(states, gain, gate, eps, is_mean)
    grad_states = torch.empty_like(states, memory_format=torch.contiguous_format)
    sums = [None if v is None else v.new_empty(norm.parts, norm.width, dtype=torch.float32) for v in (gain, gate)]
    norm.keep(output=grad_states, grad_output=grad_output, grad_gain=sums[0], grad_gate=sums[1])
    norm.run("norm_backward", norm.parts)
    return grad_states, *(None if part is None else part.sum(0) for part in sums)


class _Dropped(Structure):
    """`Dropped` of attention.c."""

    _fields_ = [
        *_fields("input output", "count"),
        ("seed", ctypes.c_uint64),
        *_fields(floats="dropout", flags="is_bfloat16"),
    ]
    MEMORY: ClassVar = dict.fromkeys(("input", "output"), (None, lambda call: call.count))


def dropout(states: Tensor, probability: float, seed: int) -> Tensor:
    """Apply dropout with probability p; the same seed gives the same mask for tensors of equal size."""
    call = _Dropped(count=states.numel(), seed=seed, dropout=probability, is_bfloat16=states.dtype == torch.bfloat16)
    output = torch.empty_like(states, memory_format=torch.contiguous_format)
    call.keep(input=states, output=output)
    call.run("drop", -(-call.count // _DROPPED_ROW))
    return output


def _in_whole_vectors(numbers: Tensor | None) -> Tensor | None:
    """Copy to float32, with zeros up to a whole vector."""
    if numbers is None:
        return None
    missing = -len(numbers) % _MOST_LANES
    if missing:
        return pad(numbers.float(), (0, missing))
    return numbers.float()


def forward(
    query: Tensor, key: Tensor, value: Tensor, options
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """What `blockwise_forward` of reluformers_kernels gives, by options with the fields of `PassOptions` there.

    States have one of `DTYPES`, and are copied if their last stride is not 1.
    """
    query, key, value = (_with_dense_rows(states) for states in (query, key, value))
    call = _Call.of(query, key, value, options)
    output = _empty_states(query, value.shape[3])
    call.output = _States.of(output, query.dtype, call.rows_per_position)
    number = {"none": 0, "sums": 1, "all": 3}[options.needed_statistics]
    sums = [query.new_zeros(query.shape[:3], dtype=torch.float32) if index < number else None for index in range(3)]
    call.keep(row_sums=sums[0], weighted_logs=sums[1], nonzeros=sums[2])
    call.splits = _splits(call, call.query_len)
    call.run("forward")
    return output, *sums


def find_thresholds(query: Tensor, key: Tensor, options) -> Tensor:
    """θ of each row, float32 [batch, heads, query_len], for which its weights sum to 1, with φ relu or relu2."""
    query, key = (_with_dense_rows(states) for states in (query, key))
    call = _Call.of(query, key, query.new_empty(*key.shape[:3], 0), options)
    thresholds = query.new_empty(query.shape[:3], dtype=torch.float32)
    call.keep(found_thresholds=thresholds)
    call.splits = _splits(call, call.query_len)
    call.run("forward")
    return thresholds


def backward(
    grad_output: Tensor,
    grad_row_sums: Tensor | None,
    grad_weighted_logs: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    options,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute gradients of query, key, value and θ from those of attention's output and of the statistics.

    The first three are in memory [batch, length, heads, width], the last float32 [], 0 where θ is a number, or of θ of
    rows [batch, heads, query_len].
    """
    grad_output, query, key, value = (_with_dense_rows(states) for states in (grad_output, query, key, value))
    batch, heads, query_len, head_dim = query.shape
    call = _Call.of(query, key, value, options)
    splits = call.splits = _splits(call, key.shape[2])
    # Gradients of queries are sums over the tasks of a head, and such sums need float32.
    dtype = query.dtype if splits == 1 else torch.float32
    grad_query = query.new_empty(splits, batch, query_len, heads, head_dim, dtype=dtype)
    grad_key, grad_value = (_empty_states(states, states.shape[3]) for states in (key, value))
    # C never reads hidden keys and values, so their gradients are set to 0 first.
    if options.key_padding_mask is not None:
        grad_key.zero_()
        grad_value.zero_()
    groups = call.rows_per_position
    if grad_output.shape != (*query.shape[:3], value.shape[3]):
        raise ValueError(f"grad_output has shape {list(grad_output.shape)}, which is not that of the output")
    call.grad_output = _States.of(grad_output, query.dtype, groups)
    call.grad_query = _States.of(grad_query.flatten(0, 1).transpose(1, 2), dtype, groups)
    call.grad_key = _States.of(grad_key, query.dtype)
    call.grad_value = _States.of(grad_value, query.dtype)
    call.keep(grad_row_sums=_as_float32(grad_row_sums), grad_weighted_logs=_as_float32(grad_weighted_logs))
    threshold = options.learned_threshold
    is_of_rows = threshold is not None and threshold.dim() == 3
    shape = (splits, batch, heads, query_len) if is_of_rows else (splits * batch * call.heads,)
    grad_threshold = query.new_zeros(shape, dtype=torch.float32)
    if is_of_rows:
        call.keep(grad_row_thresholds=grad_threshold)
    elif threshold is not None:
        call.keep(grad_threshold=grad_threshold)
    call.run("backward")
    grad_query = grad_query[0] if splits == 1 else grad_query.sum(0).to(query.dtype)
    return grad_query.transpose(1, 2), grad_key, grad_value, grad_threshold.sum(0)


def _as_float32(numbers: Tensor | None) -> Tensor | None:
    return None if numbers is None else numbers.float()


def _splits(call: _Call, length: int) -> int:
    """Into how many tasks a head is divided, so that threads find enough of them."""
    wanted = -(-_TASKS_OF_A_THREAD * torch.get_num_threads() // max(1, call.batch * call.heads))
    return max(1, min(wanted, length // _ROWS_OF_A_TASK))


def _with_dense_rows(states: Tensor) -> Tensor:
    if states.stride(-1) == 1:
        return states
    return states.contiguous()


def _empty_states(states: Tensor, width: int) -> Tensor:
    """Memory [batch, length, heads, width], seen as [batch, heads, length, width]."""
    batch, heads, length, _ = states.shape
    return states.new_empty(batch, length, heads, width).transpose(1, 2)


def can_take(query: Tensor, value: Tensor, activation: str) -> bool:
    """Whether the compiled code can do this, with keys as wide as queries."""
    widest = max(query.shape[-1], value.shape[-1])
    return activation in ACTIVATIONS and query.dtype in DTYPES and widest <= MAX_HEAD_DIM and is_available()


@torch.compiler.assume_constant_result
def is_available() -> bool:
    """Whether there is compiled code for this processor, and torch can run it."""
    return instruction_set() is not None


def explain() -> str:
    """Say what is used, and what there is."""
    built = [name for name in INSTRUCTION_SETS if _is_built(name)]
    if not built:
        return "not built from these sources: install reluformers again, beside a C compiler (GCC or Clang)"
    used = instruction_set()
    origin = "sources" if Path(__file__).with_name("attention.c").exists() else "wheel"
    return f"{f'compiled: {used}' if used else 'not used'} ({origin}); built are {', '.join(built)}"


@functools.cache
def instruction_set() -> str | None:
    """The one that is used: the fastest there is, or that of the environment variable."""
    wanted = os.environ.get(VARIABLE)
    usable = usable_instruction_sets()
    if wanted is None:
        return next((name for name in usable if name != BY_NAME), None)
    if wanted != "off" and wanted not in INSTRUCTION_SETS:
        raise ValueError(f"{VARIABLE} is {wanted!r}, but must be one of {[*INSTRUCTION_SETS, 'off']}")
    return wanted if wanted in usable else None


def usable_instruction_sets() -> list[str]:
    """List the instruction sets that this CPU has and that were built, the fastest first."""
    capabilities = torch.cpu.get_capabilities()
    return [
        name
        for name, needed in INSTRUCTION_SETS.items()
        if all(capabilities.get(feature, False) for feature in needed) and _is_built(name) and _parallel_for()
    ]


def _file(name: str) -> Path:
    suffix = ".dll" if platform.system() == "Windows" else ".abi3.so"
    return Path(__file__).with_name(f"_{name}{suffix}")


def _is_built(name: str) -> bool:
    """Whether there is compiled code that knows these structures: an older build may lie beside newer sources."""
    try:
        layout = getattr(ctypes.CDLL(str(_file(name))), "layout", None) if _file(name).exists() else None
    except OSError:  # A compiled file does not open if it was built for another machine, or cut short.
        return False
    return layout is not None and layout() == LAYOUT


@functools.cache
def _library(name: str) -> ctypes.CDLL:
    library = ctypes.CDLL(str(_file(name)))
    if name == BY_NAME and not torch.cpu._init_amx():  # Linux gives a process AMX tiles only when it asks for them.
        raise RuntimeError("the system gives no tiles of AMX to this process")
    for function in (getattr(library, name) for name in _SCRATCH_OF.values()):
        function.argtypes = [ctypes.c_void_p]
        function.restype = ctypes.c_int64
    return library


@functools.cache
def _parallel_for():
    """`torch_parallel_for` of torch's stable interface, or None where this torch has none."""
    names = {"Darwin": "libtorch_cpu.dylib", "Windows": "torch_cpu.dll"}
    library = Path(torch.__file__).parent / "lib" / names.get(platform.system(), "libtorch_cpu.so")
    try:
        function = ctypes.CDLL(str(library)).torch_parallel_for
    except (OSError, AttributeError):
        return None
    function.argtypes = [ctypes.c_int64] * 3 + [ctypes.c_void_p] * 2
    function.restype = ctypes.c_int32
    return function
