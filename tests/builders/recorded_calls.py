"""Calls of compiled code as memory that another processor can compute again: what they read, and what they wrote."""

import bisect
import ctypes
import struct
from dataclasses import dataclass

import torch

from reluformers_kernels.compiled import native

FUNCTIONS = ("forward", "backward", "norm_forward", "norm_backward", "drop", "translate")  # in the order of replay.c


@dataclass
class RecordedCall:
    """A call: its memory before and after, where tensors and pointers in it lie, and the case it is from."""

    case: str
    function: str
    parts: int
    call: int
    before: bytearray
    after: bytearray
    regions: list[tuple[int, int, torch.dtype]]  # start, bytes and dtype of each tensor
    pointers: list[tuple[int, int]]  # place of a pointer, and what it points to
    scratch: tuple[int, int]  # places in the call of the pointer to scratch memory and of its size

    def packed(self) -> bytes:
        """Give what replay.c reads."""
        numbers = FUNCTIONS.index(self.function), self.parts, self.call, len(self.before), len(self.pointers)
        pairs = [number for pair in self.pointers for number in pair]
        return struct.pack(f"<{7 + len(pairs)}q", *numbers, *self.scratch, *pairs) + self.before

    def differences(self, memory: bytearray) -> dict[torch.dtype, float]:
        """Give by dtype the largest difference from what was recorded; infinity of integers, or where NaN differ.

        Where numbers are larger than 1, their largest is the measure.
        """
        found: dict[torch.dtype, float] = {}
        for start, size, dtype in self.regions:
            place = slice(start, start + size)
            if memory[place] == self.after[place]:
                continue
            one, other = (torch.frombuffer(whole[place], dtype=dtype) for whole in (memory, self.after))
            error = float("inf")
            if dtype.is_floating_point and torch.equal(one.isnan(), other.isnan()):
                one, other = (part.double().nan_to_num() for part in (one, other))
                error = ((one - other).abs().max() / other.abs().max().clamp_min(1.0)).item()
            found[dtype] = max(found.get(dtype, 0.0), error)
        return found


class Recorder:
    """Records the calls of compiled code, whose package it patches."""

    def __init__(self, monkeypatch):
        self.calls: list[RecordedCall] = []
        self.case = ""
        self.memory: dict[int, tuple[int, torch.dtype]] = {}  # address → bytes from there on, and of what
        states = native._States
        structure = native.Structure
        decoder = native.decoder
        make_states = states.of.__func__
        keep = structure.keep
        run = structure.run

        def of(cls, tensor, *others):
            self._know(tensor)
            return make_states(cls, tensor, *others)

        def keep_and_know(call, **tensors):
            keep(call, **tensors)
            for name, tensor in tensors.items():
                if tensor is not None:
                    self._know(getattr(call, f"_{name}"))

        monkeypatch.setattr(states, "of", classmethod(of))
        monkeypatch.setattr(structure, "keep", keep_and_know)
        monkeypatch.setattr(structure, "run", lambda call, name, parts: self._record(run, call, name, parts))
        self.structures = {
            "encoder": decoder.Stack,
            "decoder": decoder.Stack,
            "logits": decoder.Linear,
            "layers": decoder.Layer,
            "rules": decoder.Rule,
        }

    def _know(self, tensor: torch.Tensor) -> None:
        size = 1 + sum((length - 1) * stride for length, stride in zip(tensor.shape, tensor.stride(), strict=True))
        if tensor.numel():
            self.memory[tensor.data_ptr()] = size * tensor.element_size(), tensor.dtype

    def _record(self, run, call, name: str, parts: int) -> None:
        if parts == 0:
            return
        if getattr(call, "_of_rows", None) is not None:
            self._know(call._of_rows)
        pieces: list[tuple[int, int, torch.dtype | None]] = [(ctypes.addressof(call), ctypes.sizeof(call), None)]
        pointers: list[tuple[int, int]] = []  # addresses
        self._follow(type(call), ctypes.addressof(call), pieces, pointers)
        starts = {}
        total = 0
        for address, size, _ in pieces:
            starts[address] = total + address % 64  # whether a processor may read there depends on it
            total += -(-size // 64) * 64 + 128
        order = sorted(starts)

        def place(address: int) -> int:
            base = order[bisect.bisect_right(order, address) - 1]
            return starts[base] + address - base

        def copy() -> bytearray:
            image = bytearray(total)
            for address, size, _ in pieces:
                image[starts[address] : starts[address] + size] = ctypes.string_at(address, size)
            return image

        before = copy()
        run(call, name, parts)
        regions = [(starts[address], size, dtype) for address, size, dtype in pieces if dtype is not None]
        relative = [(place(address), place(target)) for address, target in pointers]
        kind = type(call)
        scratch = (kind.scratch.offset, kind.scratch_size.offset) if hasattr(kind, "scratch") else (0, 0)
        start = place(ctypes.addressof(call))
        self.calls.append(RecordedCall(self.case, name, parts, start, before, copy(), regions, relative, scratch))

    def _follow(self, kind: type, address: int, pieces: list, pointers: list) -> None:
        for name, field in kind._fields_:
            here = address + getattr(kind, name).offset
            if issubclass(field, ctypes.Structure):
                self._follow(field, here, pieces, pointers)
            elif field is ctypes.c_void_p and name != "scratch":
                target = ctypes.c_void_p.from_address(here).value
                if not target:
                    continue
                pointers.append((here, target))
                if any(target == known for known, *_ in pieces):
                    continue
                if name in self.structures:
                    inner = self.structures[name]
                    count = {"layers": "layer_count", "rules": "rule_count"}.get(name)
                    number = getattr(kind.from_address(address), count) if count else 1
                    pieces.append((target, ctypes.sizeof(inner) * number, None))
                    for i in range(number):
                        self._follow(inner, target + i * ctypes.sizeof(inner), pieces, pointers)
                else:
                    pieces.append((target, *self.memory[target]))
