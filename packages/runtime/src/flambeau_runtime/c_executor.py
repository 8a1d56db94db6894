"""Assemble a Program for the C executor (csrc/executor.c): names become slots, sizes become entries
of one int64 table.

    buf0 = allocate float32[s0, 768]     ->  OP_ALLOCATE slot dtype device index ndim sizes
    launch k(arg0, buf0; s0*768)         ->  OP_LAUNCH address 2 ints -1 slot slot

The table of values is laid out as: symbols | size expressions, each once | sequences (a shape and
its strides, a launch's ints), each once. A sequence's constants are in the table already; its
expressions are copied into place at the start of a call.
"""

from __future__ import annotations

import functools
from array import array
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from flambeau_runtime import dims, random_state
from flambeau_runtime.arena import Places, byte_size, find_places, itemsize
from flambeau_runtime.dims import difference
from flambeau_runtime.dispatch import DEVICE_CODES, DTYPE_CODES, dispatched
from flambeau_runtime.externs import (
    REPLACED,
    bits_of,
    constant,
    is_constant,
    markers_in,
    operator_of,
    out_of_bounds,
    refs_of,
    view_of,
)
from flambeau_runtime.profile_names import name_of_program, name_of_step
from flambeau_runtime.program import (
    Allocate,
    Dim,
    Extern,
    Float,
    Free,
    Launch,
    Program,
    Ref,
    Reserve,
    SizeExpr,
    Step,
    Symbol,
    Tensor,
    View,
)

# The numbers are those of `enum Opcode` in csrc/executor.c.
(
    ALLOCATE,
    RAW,
    VIEW,
    POINTER,
    MOVE,
    LAUNCH,
    LAUNCH_GPU,
    MATMUL,
    DISPATCH,
    CALL,
    FREE,
    RELEASE_GIL,
    TAKE_GIL,
    RESERVE,
    RETURN,
) = range(15)
OUT_NONE, OUT_SLOT, OUT_INT = -1, 0, 1

# out= overloads that are called through libtorch's C interface: its function, number of tensors
# with out first, beta and alpha?
MATMULS = {
    "aten.mm.out": ("mm_out", 3, False),
    "aten.bmm.out": ("bmm_out", 3, False),
    "aten.addmm.out": ("addmm_out", 4, True),
    "aten.baddbmm.out": ("baddbmm_out", 4, True),
}

HEAVY_NUMEL = 16384
"""From this many elements in some tensor on, the GIL is released around kernels: below, giving it
up costs more than it gains.
"""

_MAX_BUFFERS = 512


class Assembler:
    """Turns one Program into the arguments of `_core.Executor`."""

    def __init__(
        self,
        program: Program,
        kernels: Mapping[str, Any],
        core: ModuleType,
        *,
        arenas: bool = False,
        title: str = "",
    ) -> None:
        """`arenas`: place small intermediates; what is recorded gains nothing by that. `title`:
        what profilers call the Program's graph.
        """
        self.title = title
        self.names: list[tuple[int, str]] = []
        self.program = program
        self.kernels = kernels
        self.core = core
        self.tensors = {tensor.name: tensor for tensor in program.tensors}
        self.slots = {name: index for index, name in enumerate(self.tensors)}
        self.checked = {kernel.name for kernel in program.kernels if kernel.meta.get("checked")}
        self.places = find_places(program) if arenas else Places()
        self.raw = kernel_only(program, self.tensors) - self.places.placed.keys()
        self.reserves = [step for step in program.steps if isinstance(step, Reserve)]
        names = [symbol.name for symbol in program.symbols]
        names += [name for step in self.reserves for name in step.symbols]
        self.symbols = {name: index for index, name in enumerate(names)}
        self.expressions: dict[str, int] = {}
        self.sequences: dict[tuple[Dim, ...], int] = {}
        self.tail: list[Dim] = []
        self.objects: list[Any] = []
        self.code: list[int] = []
        self.below = False

    def assemble(self) -> Any:
        """The executor object."""
        program = self.program
        self._collect_expressions()
        heavy = any(_is_heavy(tensor) for tensor in program.tensors)
        self._emit_arenas()
        released = False
        for step in program.steps:
            before = len(self.code)
            self._emit(step)
            if len(self.code) == before:
                continue
            opcode = self.code[before]
            if heavy and not released and opcode in (LAUNCH, LAUNCH_GPU, MATMUL, DISPATCH):
                self.code.insert(before, RELEASE_GIL)
                released = True
            elif released and opcode in (CALL, RESERVE):
                self.code.insert(before, TAKE_GIL)
                released = False
            name = name_of_step(step)
            if name is not None:
                moved = self.code[before] in (RELEASE_GIL, TAKE_GIL)
                self.names.append((before + moved, name))
        outputs = self._outputs()
        self.code.append(RETURN)
        return self._executor(outputs)

    # Values

    def _collect_expressions(self) -> None:
        """Number every distinct size expression before any sequence is laid out."""
        found: dict[str, None] = {}
        for tensor in self.program.tensors:
            dims_used = (*tensor.shape, *tensor.stride, tensor.offset)
            found.update(dict.fromkeys(dim for dim in dims_used if isinstance(dim, str)))
            if tensor.name in self.raw:
                nbytes = byte_size(tensor)
                if isinstance(nbytes, str):
                    found[nbytes] = None
        for step in self.program.steps:
            if isinstance(step, Launch):
                found.update(
                    dict.fromkeys(dim for dim in (*step.ints, *step.grid) if isinstance(dim, str))
                )
            elif isinstance(step, Reserve):
                if isinstance(step.increment, str):
                    found[step.increment] = None
            elif isinstance(step, Extern):
                given = markers_in((step.args, step.kwargs), SizeExpr)
                found.update(dict.fromkeys(expression.text for expression in given))
            elif isinstance(step, View):
                moved = difference(self.tensors[step.name].offset, self.tensors[step.base].offset)
                if isinstance(moved, str):
                    found[moved] = None
        for out in self.program.outputs:
            if isinstance(out, SizeExpr):
                found[out.text] = None
        for text in found:
            if text not in self.symbols:
                self.expressions[text] = len(self.symbols) + len(self.expressions)

    def _sequence(self, sizes: tuple[Dim, ...]) -> int:
        """Where these values stand, one after another, in the table."""
        found = self.sequences.get(sizes)
        if found is None:
            found = self.sequences[sizes] = (
                len(self.symbols) + len(self.expressions) + len(self.tail)
            )
            self.tail.extend(sizes)
        return found

    def _value(self, dim: Dim) -> int:
        """Where one value stands."""
        if isinstance(dim, str):
            return self.symbols[dim] if dim in self.symbols else self.expressions[dim]
        return self._sequence((dim,))

    def _object(self, item: Any) -> int:
        self.objects.append(item)
        return len(self.objects) - 1

    # Steps

    def _emit(self, step: Step) -> None:
        if isinstance(step, Launch):
            if len(step.buffers) > _MAX_BUFFERS:
                raise ValueError(
                    f"kernel {step.kernel} takes {len(step.buffers)} buffers; "
                    f"{_MAX_BUFFERS} is the most"
                )
            ints = self._sequence(step.ints)
            buffers = [self.slots[name] for name in step.buffers]
            kernel = self.kernels[step.kernel]
            if not isinstance(kernel, int):
                grid = self._sequence((*step.grid, 1, 1)[:3])
                counts = [len(buffers), len(step.ints), ints, grid]
                self.code += [LAUNCH_GPU, self._object(kernel), *counts, *buffers]
                return
            message = (
                self._object(out_of_bounds(step.kernel)) if step.kernel in self.checked else -1
            )
            self.code += [LAUNCH, kernel, len(buffers), ints, message, *buffers]
        elif isinstance(step, Extern):
            self._emit_extern(step)
        elif isinstance(step, Reserve):
            self._emit_reserve(step)
        elif isinstance(step, Free):
            self._emit_free(step.name)
        elif isinstance(step, Allocate):
            self._emit_allocate(step)
        elif isinstance(step, View):
            if step.name in self.places.placed:
                self._emit_placed(step.name)
            else:
                self._emit_view(step.name, step.base)

    def _emit_free(self, name: str) -> None:
        if name not in self.places.pointers:
            self.code += [FREE, self.slots[name]]

    def _emit_arenas(self) -> None:
        """Allocate the arenas, in the slots behind those of tensors."""
        for number, (device, dtype, nbytes) in enumerate(self.places.arenas):
            size = nbytes // getattr(torch, dtype).itemsize
            self._emit_fresh(len(self.slots) + number, device, dtype, (size,), (1,))

    def _emit_placed(self, name: str) -> None:
        """A tensor, or an address, in an arena."""
        tensor, place = self.tensors[name], self.places.placed[name]
        slot, arena = self.slots[name], len(self.slots) + place.arena
        if name in self.places.pointers:
            self.code += [POINTER, slot, arena, place.offset]
            return
        sizes = self._sequence((*tensor.shape, *tensor.stride))
        start = self._value(place.offset // itemsize(tensor))
        self.code += [VIEW, slot, arena, len(tensor.shape), sizes, start]

    def _emit_allocate(self, step: Allocate) -> None:
        tensor, slot = self.tensors[step.name], self.slots[step.name]
        if step.name in self.places.placed:
            self._emit_placed(step.name)
            if step.reuse is not None:
                self._emit_free(step.reuse)
            return
        old = self.tensors[step.reuse] if step.reuse is not None else None
        is_raw = step.name in self.raw
        if old is not None and is_raw == (old.name in self.raw):
            same_layout = (tensor.shape, tensor.stride, tensor.dtype) == (
                old.shape,
                old.stride,
                old.dtype,
            )
            if is_raw or (same_layout and tensor.offset == old.offset):
                self.code += [MOVE, slot, self.slots[old.name]]
                return
            if keeps_memory(tensor, old):
                self._emit_view(step.name, old.name)
                self.code += [FREE, self.slots[old.name]]
                return
        if old is not None:
            self._emit_free(old.name)
        if is_raw:
            self.code += [RAW, slot, self._value(byte_size(tensor))]
            return
        self._emit_fresh(slot, tensor.device, tensor.dtype, tensor.shape, tensor.stride)

    def _emit_fresh(
        self, slot: int, device: str, dtype: str, shape: tuple[Dim, ...], stride: tuple[Dim, ...]
    ) -> None:
        on = torch.device(device)
        sizes = self._sequence((*shape, *stride))
        self.code += [
            ALLOCATE,
            slot,
            DTYPE_CODES[dtype],
            DEVICE_CODES[on.type],
            on.index or 0,
            len(shape),
            sizes,
        ]

    def _emit_reserve(self, step: Reserve) -> None:
        """The two words go to their symbols, and from there to the launches that are passed them:
        by the copies of the step's number.
        """
        device = random_state.device_index(step.device)
        self.code += [
            RESERVE,
            self._object(functools.partial(random_state.reserve, device)),
            self.slots[step.name],
            self._value(step.increment),
            *(self.symbols[name] for name in step.symbols),
            self.reserves.index(step),
        ]

    def _emit_view(self, name: str, base_name: str) -> None:
        tensor, base = self.tensors[name], self.tensors[base_name]
        slot, base_slot = self.slots[name], self.slots[base_name]
        if name in self.places.pointers:
            moved = difference(tensor.offset, base.offset)
            assert isinstance(moved, int)
            self.code += [POINTER, slot, base_slot, moved * itemsize(tensor)]
            return
        if tensor.dtype == base.dtype:
            sizes = self._sequence((*tensor.shape, *tensor.stride))
            self.code += [
                VIEW,
                slot,
                base_slot,
                len(tensor.shape),
                sizes,
                self._value(difference(tensor.offset, base.offset)),
            ]
            return
        trees = (
            ("t", base_slot),
            ("k", getattr(torch, tensor.dtype)),
            ("l", tuple(self._int_tree(dim) for dim in tensor.shape)),
            ("l", tuple(self._int_tree(dim) for dim in tensor.stride)),
            self._int_tree(difference(tensor.offset, base.offset)),
        )
        self._emit_call(view_of, trees, (), "a view of another dtype", (slot,))

    def _emit_extern(self, step: Extern) -> None:
        direct = self._matmul(step) or self._dispatched(step)
        before = len(self.code)
        self._emit_python_call(step)
        if direct is not None:
            opcode, *operands = direct
            lengths = [2 + len(operands), len(self.code) - before]
            self.code[before:before] = [opcode, *lengths, *operands]

    def _emit_python_call(self, step: Extern) -> None:
        keywords = (*step.kwargs, *(key for key, _ in step.out))
        trees = (
            *(self._tree(arg) for arg in step.args),
            *(self._tree(arg) for arg in step.kwargs.values()),
            *(("t", self.slots[name]) for _, name in step.out),
        )
        outputs = tuple(-1 if name is None else self.slots[name] for name in step.outputs)
        self._emit_call(operator_of(step), trees, keywords, step.op, outputs)

    def _emit_call(
        self,
        function: Any,
        trees: tuple[Any, ...],
        keywords: tuple[str, ...],
        what: str,
        outputs: tuple[int, ...],
    ) -> None:
        self.below = True
        message = self._object(f"while {self.program.name} called {what}")
        names = self._object(keywords) if keywords else -1
        self.code += [
            CALL,
            self._object(function),
            self._object(trees),
            names,
            message,
            len(outputs),
            *outputs,
        ]

    def _matmul(self, step: Extern) -> list[int] | None:
        """OP_MATMUL and its operands but the lengths, if this is a matrix product of the plain form
        and all is on one kind of device.
        """
        known = MATMULS.get(step.op)
        if known is None or len(step.out) != 1:
            return None
        function, n_tensors, scaled = known
        names = [step.out[0][1], *refs_of(step.args)]
        if (
            len(names) != n_tensors
            or len(step.args) != n_tensors - 1
            or not set(step.kwargs) <= ({"beta", "alpha"} if scaled else set())
        ):
            return None
        beta, alpha = step.kwargs.get("beta", 1), step.kwargs.get("alpha", 1)
        kinds = {torch.device(self.tensors[name].device).type for name in names}
        if len(kinds) != 1 or not (
            isinstance(beta, (int, float)) and isinstance(alpha, (int, float))
        ):
            return None
        address = find_shim(self.core, f"aoti_torch_{kinds.pop()}_{function}")
        if not address:
            return None
        scales = (bits_of(beta), bits_of(alpha))
        tensors = [self.slots[name] for name in names]
        return [MATMUL, address, n_tensors, int(scaled), *scales, *tensors]

    def _dispatched(self, step: Extern) -> list[int] | None:
        """OP_DISPATCH and its operands but the lengths, if torch's dispatcher can be asked. Where
        torch prints what fails (before 2.12), calls on the CPU go through Python: data makes them
        fail in programs that expect it.
        """
        usable, silent = self.core.dispatcher()
        names = [*refs_of((step.args, step.kwargs)), *filter(None, step.outputs)]
        on_cpu = any(torch.device(self.tensors[name].device).type == "cpu" for name in names)
        if not usable or (on_cpu and not silent) or step.op in REPLACED:
            return None
        operands = dispatched(step, self.slots.__getitem__, self._value, self._object)
        return None if operands is None else [DISPATCH, *operands]

    def _tree(self, arg: Any) -> tuple[str, Any]:
        if isinstance(arg, Ref):
            return ("t", self.slots[arg.name])
        if isinstance(arg, SizeExpr):
            return self._int_tree(arg.text)
        if isinstance(arg, Float):
            return ("f", self._value(arg.text))
        if isinstance(arg, (list, tuple)) and not is_constant(arg):
            return ("l" if isinstance(arg, list) else "u", tuple(self._tree(item) for item in arg))
        if isinstance(arg, (list, tuple)):
            return ("k", type(arg)(constant(item) for item in arg))
        return ("k", constant(arg))

    def _int_tree(self, dim: Dim) -> tuple[str, Any]:
        return ("i", self._value(dim)) if isinstance(dim, str) else ("k", dim)

    # The whole

    def _outputs(self) -> list[int]:
        flat: list[int] = []
        for out in self.program.outputs:
            if out is None:
                flat += [OUT_NONE, 0]
            elif isinstance(out, SizeExpr):
                flat += [OUT_INT, self._value(out.text)]
            else:
                flat += [OUT_SLOT, self.slots[out]]
        return flat

    def _executor(self, outputs: list[int]) -> Any:
        program = self.program
        start = len(self.symbols) + len(self.expressions)
        values = [0] * start + [dim if isinstance(dim, int) else 0 for dim in self.tail]
        copies: list[int] = []
        of_reserves: dict[str, list[int]] = {
            name: [] for step in self.reserves for name in step.symbols
        }
        for index, dim in enumerate(self.tail):
            if isinstance(dim, str):
                of_reserves.get(dim, copies).extend([start + index, self._value(dim)])
        n_copies = len(copies)
        reserved = [n_copies]
        for step in self.reserves:
            copies += [place for name in step.symbols for place in of_reserves[name]]
            reserved.append(len(copies))
        postfix: list[int] = []
        for text, index in self.expressions.items():
            code = self._postfix(text)
            postfix += [index, len(code), *code]
        symbols = [
            item for at, s in enumerate(program.symbols) for item in (s.input, _place_of(s), at)
        ]
        positions = {name: position for position, name in enumerate(program.inputs)}
        return self.core.Executor(
            name=program.name,
            program=program,
            objects=tuple(self.objects),
            n_slots=len(self.slots) + len(self.places.arenas),
            below=self.below,
            code=_pack(self.code),
            values=_pack(values),
            postfix=_pack(postfix),
            copies=_pack(copies),
            reserved=_pack(reserved),
            symbols=_pack(symbols),
            inputs=_pack([self.slots.get(name, -1) for name in program.inputs]),
            outputs=_pack(outputs),
            mutated=_pack(
                [
                    entry
                    for name, count in program.counted_writes()
                    # A position for each bump; ~position: mutated, and its version counter stays
                    for entry in [positions[name]] * count or [~positions[name]]
                ]
            ),
            title=name_of_program(program, self.title),
            names=tuple(self.names),
        )

    def _postfix(self, text: str) -> list[int]:
        code: list[int] = []
        for opcode, operand in dims.postfix(text):
            code.append(opcode)
            if opcode == dims.CONST:
                code.append(operand)  # type: ignore[arg-type]
            elif opcode == dims.LOAD:
                code.append(self.symbols[operand])  # type: ignore[index]
        return code


def _place_of(symbol: Symbol) -> int:
    """Where the executor finds a symbol in its argument (executor_read_symbols)."""
    if symbol.is_float:
        return -2
    if symbol.dim is None:
        return -1
    return -3 - symbol.dim if symbol.is_element else symbol.dim


def kernel_only(program: Program, tensors: Mapping[str, Tensor]) -> frozenset[str]:
    """The allocated CPU tensors that only C++ kernels see: plain memory serves them, with no tensor
    object around it.
    """
    allocated = {step.name for step in program.steps if isinstance(step, Allocate)}
    seen: set[str] = {out for out in program.outputs if isinstance(out, str)}
    shared: list[tuple[str, str]] = []  # (buffer, the one whose memory it overwrites), in order
    for step in program.steps:
        if isinstance(step, View):
            seen |= {step.name, step.base}
        elif isinstance(step, Extern):
            seen.update(refs_of((step.args, step.kwargs)), (name for _, name in step.out))
            seen.update(name for name in step.outputs if name is not None)
        elif isinstance(step, Allocate) and step.in_place and step.reuse is not None:
            shared.append((step.name, step.reuse))
        elif isinstance(step, Reserve):
            seen.add(step.name)
    for name, old in (*shared, *reversed(shared)):
        if name in seen or old in seen or old not in allocated:
            seen |= {name, old}
    return frozenset(name for name in allocated - seen if tensors[name].device == "cpu")


def keeps_memory(tensor: Tensor, old: Tensor) -> bool:
    """Whether an allocation that reuses `old` gets the same memory: a buffer of another dtype is
    freed, and another one allocated.
    """
    return tensor.dtype == old.dtype


@lru_cache(maxsize=256)
def find_shim(core: ModuleType, name: str) -> int:
    """The address of a function of libtorch's C interface, 0 if this torch has none."""
    library = "libtorch_cuda.so" if "_cuda_" in name else "libtorch_cpu.so"
    path = Path(torch.__file__).parent / "lib" / library
    return core.find_symbol(core.open_library(str(path)), name) if path.exists() else 0


def _is_heavy(tensor: Tensor) -> bool:
    numel = 1
    for size in tensor.shape:
        if isinstance(size, str):
            return True
        numel *= size
    return numel >= HEAVY_NUMEL


def _pack(values: list[int]) -> bytes:
    return array("q", values).tobytes()
