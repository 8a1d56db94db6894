"""Small intermediates of the GPU in one allocation a call, at fixed places.

    buf0 = allocate float32[8, 768]           place of buf0: arena 0, byte 0
    launch k0(arg0, buf0)
    buf1 = allocate float32[8, 768]           place of buf1: arena 0, byte 24576
    extern aten.mm.out(buf0, arg1, out=buf1)
    free buf0
    buf2 = allocate float32[8, 768]           place of buf2: arena 0, byte 0

torch's allocator takes about a microsecond for each tensor, which small kernels do not hide. What
only kernels see needs no tensor at all: its address is enough, and that is also true of views. A
block (an allocation, what takes over its memory, and views of these) is placed if its size is
fixed and small and if only our kernels, matrix products, convolutions and attention touch it; what
leaves the call is not placed. Blocks that are not alive at the same time share places.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import torch

from flambeau_runtime.dims import difference
from flambeau_runtime.externs import refs_of
from flambeau_runtime.program import (
    Allocate,
    Dim,
    Extern,
    Free,
    Launch,
    Program,
    Reserve,
    Tensor,
    View,
)

DEVICES = frozenset({"cuda"})
"""On a CPU `malloc` costs less than the view that an operator would need."""

BLOCK_BYTES = 1 << 18
ARENA_BYTES = 1 << 22
"""The largest block, and the largest arena: what is large is freed after its last use instead."""

ALIGNMENT = 256


@dataclass(frozen=True)
class Place:
    """Where a tensor starts: bytes from the start of an arena."""

    arena: int
    offset: int


@dataclass
class Places:
    """`arenas` are uint8 sizes by device and dtype; `pointers` names what needs no tensor: it is
    placed, or a view that dies before its base.
    """

    arenas: list[tuple[str, str, int]] = field(default_factory=list)
    placed: dict[str, Place] = field(default_factory=dict)
    pointers: set[str] = field(default_factory=set)


@dataclass
class _Block:
    """Memory that one allocation made; the input or ATen result where `fixed` is False."""

    fixed: bool
    start: int = 0
    last_use: int = -1
    freed: int = 1 << 60
    size: int = 0
    device: str = ""
    dtype: str = ""
    offset: int | None = None


class _Analysis:
    """The blocks of a Program and who reads them. `starts` are bytes from the block's start, absent
    where they are not known or behind a change of dtype.
    """

    def __init__(self, program: Program) -> None:
        self.tensors = {tensor.name: tensor for tensor in program.tensors}
        self.blocks = {name: _Block(fixed=False) for name in program.inputs}
        self.starts = dict.fromkeys(program.inputs, 0)
        self.views: dict[str, str] = {}
        self.need_tensors: set[str] = set()
        for number, step in enumerate(program.steps):
            self._visit(number, step)
        for out in program.outputs:
            if isinstance(out, str):
                self._escape(out)
                self._need_tensor(out)

    def _visit(self, number: int, step: object) -> None:
        if isinstance(step, Allocate):
            self._allocate(number, step)
        elif isinstance(step, View):
            self._use(number, step.base)
            self._share(step.name, step.base)
            self.views[step.name] = step.base
            if step.name not in self.starts:
                self._need_tensor(step.base)
                self._need_tensor(step.name)
        elif isinstance(step, Launch):
            for name in step.buffers:
                self._use(number, name)
        elif isinstance(step, Free):
            self._free(number, step.name)
        elif isinstance(step, Extern):
            given = [*refs_of((step.args, step.kwargs)), *(name for _, name in step.out)]
            for name in given:
                self._use(number, name)
                self._need_tensor(name)
                if not _reads_data_only(step):
                    self._escape(name)
            for name in filter(None, step.outputs):
                self._appear(name)
        elif isinstance(step, Reserve):
            self._appear(step.name)

    def _appear(self, name: str) -> None:
        """A tensor that the program did not allocate."""
        self.blocks[name] = _Block(fixed=False)
        self.starts[name] = 0
        self._need_tensor(name)

    def _allocate(self, number: int, step: Allocate) -> None:
        tensor = self.tensors[step.name]
        if step.reuse is not None and tensor.dtype == self.tensors[step.reuse].dtype:
            self._share(step.name, step.reuse)
            start, size = self.starts.get(step.name, -1), byte_size(tensor)
            block = self.blocks[step.name]
            if start < 0 or not isinstance(size, int):
                block.fixed = False
            else:
                block.size = max(block.size, start + size)
            return
        if step.reuse is not None:
            self._free(number, step.reuse)
        size = byte_size(tensor)
        fixed = isinstance(size, int) and _device_type(tensor) in DEVICES
        self.blocks[step.name] = _Block(
            fixed=fixed,
            start=number,
            last_use=number,
            size=size if isinstance(size, int) else 0,
            device=tensor.device,
            dtype=tensor.dtype,
        )
        self.starts[step.name] = 0

    def _share(self, name: str, base_name: str) -> None:
        """`name` lies in the memory of `base_name`."""
        self.blocks[name] = self.blocks[base_name]
        tensor, base = self.tensors[name], self.tensors[base_name]
        moved = difference(tensor.offset, base.offset)
        if tensor.dtype == base.dtype and isinstance(moved, int) and base_name in self.starts:
            self.starts[name] = self.starts[base_name] + moved * itemsize(tensor)

    def _use(self, number: int, name: str) -> None:
        self.blocks[name].last_use = number

    def _free(self, number: int, name: str) -> None:
        """Memory goes with what owns it; tensors that are views hold it."""
        if name not in self.views:
            self.blocks[name].freed = min(self.blocks[name].freed, number)

    def _escape(self, name: str) -> None:
        self.blocks[name].fixed = False

    def _need_tensor(self, name: str) -> None:
        self.need_tensors.add(name)


def find_places(program: Program) -> Places:
    """Where a Program's small intermediates lie, and which tensors are addresses only."""
    analysis = _Analysis(program)
    places = Places()
    blocks = {
        id(block): block
        for block in analysis.blocks.values()
        if block.fixed and 0 < block.size <= BLOCK_BYTES
    }
    by_arena: dict[tuple[str, str], list[_Block]] = defaultdict(list)
    for block in blocks.values():
        by_arena[block.device, block.dtype].append(block)
    numbers: dict[tuple[str, str], int] = {}
    for key, members in by_arena.items():
        size = pack(members)
        if size <= ARENA_BYTES and len(members) > 1:
            numbers[key] = len(places.arenas)
            places.arenas.append((*key, size))
    for name, block in analysis.blocks.items():
        number = numbers.get((block.device, block.dtype))
        if id(block) in blocks and number is not None and name in analysis.starts:
            assert block.offset is not None
            places.placed[name] = Place(number, block.offset + analysis.starts[name])
    places.pointers = _pointers(analysis, places)
    return places


def pack(blocks: list[_Block]) -> int:
    """Give each block an offset, so that those alive at the same time lie apart; the whole size."""
    alive: list[_Block] = []
    size = 0
    for block in sorted(blocks, key=lambda block: block.start):
        alive = [other for other in alive if other.last_use >= block.start]
        best, end = None, 0
        for other in sorted(alive, key=lambda other: other.offset or 0):
            assert other.offset is not None
            gap = other.offset - end
            if gap >= block.size and (best is None or gap < best[0]):
                best = gap, end
            end = max(end, _aligned(other.offset + other.size))
        block.offset = end if best is None else best[1]
        size = max(size, block.offset + block.size)
        alive.append(block)
    return size


def _aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT


def _pointers(analysis: _Analysis, places: Places) -> set[str]:
    """What only kernels see, of what is placed and of the views on what outlives them."""
    based_on: dict[str, set[str]] = defaultdict(set)
    for name, base in analysis.views.items():
        based_on[base].add(name)
    result: set[str] = set()
    # A view is declared after its base.
    for name in reversed(analysis.blocks):
        if name in analysis.need_tensors or name not in analysis.starts:
            continue
        if name in places.placed:
            result.add(name)
            continue
        block = analysis.blocks[name]
        on_gpu = name in analysis.views and _device_type(analysis.tensors[name]) in DEVICES
        if on_gpu and based_on[name] <= result and block.last_use < block.freed:
            result.add(name)
    return result


def _reads_data_only(step: Extern) -> bool:
    """Whether a call cannot tell where in its storage a tensor lies. Others may copy the storage,
    count offsets from its start (as_strided), return it, or keep it.
    """
    namespace, name, _ = step.op.split(".")
    products = {"mm", "bmm", "addmm", "baddbmm", "convolution", "convolution_backward"}
    return namespace == "aten" and (name in products or name.startswith("_scaled_dot_product_"))


def _device_type(tensor: Tensor) -> str:
    return torch.device(tensor.device).type


def byte_size(tensor: Tensor) -> Dim:
    """The bytes that a tensor's elements span."""
    size = itemsize(tensor)
    if all(isinstance(dim, int) for dim in (*tensor.shape, *tensor.stride)):
        if 0 in tensor.shape:
            return 0
        extents = zip(tensor.shape, tensor.stride, strict=True)
        return size * (1 + sum((n - 1) * s for n, s in extents))  # type: ignore[operator,misc]
    spans = "".join(f" + ({n} - 1)*({s})" for n, s in zip(tensor.shape, tensor.stride, strict=True))
    return f"max(0, 1{spans})*{size}"


def itemsize(tensor: Tensor) -> int:
    """The bytes of one element."""
    size: int = getattr(torch, tensor.dtype).itemsize
    return size
