"""Run a generated Triton source in Triton's interpreter, on CPU tensors.

Import this before Triton: it sets TRITON_INTERPRET, which Triton reads when it is imported. The
interpreter knows no libdevice; `numpy_libdevice` stands in for it with NumPy's functions.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import re
import tempfile
import types
from typing import TYPE_CHECKING, Any

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch
import triton.language as tl
from addresses import within
from triton.runtime import interpreter as triton_interpreter
from triton.runtime.interpreter import (
    InterpreterBuilder,
    ReduceOps,
    ScanOps,
    TensorHandle,
    interpreter_builder,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from flambeau_inductor.codegen.triton.matmul_tiling import MatmulTiling
    from flambeau_inductor.codegen.triton.tiling import Tiling
    from flambeau_inductor.ir import LoopKernel

NUMPY_NAMES = {
    "asin": "arcsin",
    "acos": "arccos",
    "atan": "arctan",
    "asinh": "arcsinh",
    "acosh": "arccosh",
    "atanh": "arctanh",
    "pow": "power",
    "atan2": "arctan2",
    "nearbyint": "rint",
    "fast_logf": "log",
    "fast_sinf": "sin",
    "fast_cosf": "cos",
}


def numpy_libdevice() -> types.ModuleType:
    """A module whose functions compute on the interpreter's tensors with NumPy."""
    module = types.ModuleType("libdevice")

    def elementwise(function: Any) -> Any:
        def call(*args: Any) -> Any:
            arrays = [arg.handle.data for arg in args]
            with np.errstate(all="ignore"):
                data = np.asarray(function(*arrays), dtype=arrays[0].dtype)
            first = args[0]
            shape = [tl.constexpr(size) for size in data.shape]
            handle = type(first.handle)(data, first.handle.dtype)
            return tl.tensor(
                handle, tl.block_type(first.type.scalar, shape) if shape else first.type.scalar
            )

        return call

    for name in (
        "trunc",
        "expm1",
        "log10",
        "log1p",
        "tan",
        "asin",
        "acos",
        "atan",
        "sinh",
        "cosh",
        "tanh",
        "asinh",
        "acosh",
        "atanh",
        "pow",
        "atan2",
        "copysign",
        "fmod",
        "nearbyint",
        "sqrt",
        "fast_logf",
        "fast_sinf",
        "fast_cosf",
    ):
        setattr(module, name, elementwise(getattr(np, NUMPY_NAMES.get(name, name))))
    module.rsqrt = elementwise(lambda x: 1 / np.sqrt(x))  # type: ignore[attr-defined]
    module.erfc = elementwise(np.vectorize(math.erfc))  # type: ignore[attr-defined]
    module.lgamma = elementwise(lambda x: torch.lgamma(torch.from_numpy(np.array(x))).numpy())  # type: ignore[attr-defined]
    return module


def multiply_bfloat16(create_dot: Any) -> Any:
    """The interpreter's matrix product, which takes the bits of bfloat16 for integers."""

    def multiply(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        def widened(handle: Any) -> Any:
            if handle.dtype.scalar is not tl.bfloat16:
                return handle
            bits = handle.data.astype(np.uint32) << 16
            return type(handle)(bits.view(np.float32), tl.float32)

        return create_dot(self, widened(a), widened(b), *rest)

    return multiply


class AsmResult:
    """What a line of PTX gives: the handle of its one result."""

    def __init__(self, handle: TensorHandle) -> None:
        self.handle = handle

    def get_result(self, number: int) -> TensorHandle:
        """The handle; IndexError for any other than the first."""
        return (self.handle,)[number]


def run_asm(
    self: InterpreterBuilder, text: str, constraints: str, operands: Sequence[Any], *_: Any
) -> AsmResult:
    """The one line of PTX that kernels have here: a product of two tiles."""
    if not re.fullmatch(r"mul\.rn\.f(32|64) \$0, \$1, \$2;", text):
        raise NotImplementedError(f"{text} in Triton's interpreter")
    return AsmResult(self.binary_op(*operands, np.multiply))


InterpreterBuilder.create_inline_asm = run_asm
InterpreterBuilder.create_dot = multiply_bfloat16(InterpreterBuilder.create_dot)


NUMPY_TYPES: dict[str, np.dtype] = {}
find_numpy_type = triton_interpreter._get_np_dtype


def numpy_type(kind: tl.dtype) -> np.dtype:
    """NumPy's type for one of Triton's; the interpreter makes the whole table in each call."""
    name = kind.scalar.name
    if name not in NUMPY_TYPES:
        NUMPY_TYPES[name] = find_numpy_type(kind)
    return NUMPY_TYPES[name]


triton_interpreter._get_np_dtype = numpy_type


@functools.cache
def shape_constants(shape: tuple[int, ...]) -> tuple[tl.tuple, tl.tuple, tl.constexpr]:
    """A block's shape in integers and in constants, and its number of elements.

    TypeError, ValueError where Triton allows no such block.
    """
    if shape:
        check_block_type(object.__new__(tl.block_type), tl.int8, list(shape))
    constants = tl.tuple([tl.constexpr(size) for size in shape])
    return tl.tuple(shape), constants, tl.constexpr(math.prod(shape))


check_block_type = tl.block_type.__init__


def init_known_block_type(self: tl.block_type, element: tl.dtype, shape: Sequence[Any]) -> None:
    """A block's type; the interpreter makes and checks the shape of each operation's result."""
    sizes = tuple([getattr(size, "value", size) for size in shape])
    if not sizes:
        raise TypeError("a block has a dim")
    self.element_ty = element
    self.shape, _, numel = shape_constants(sizes)
    self.numel = numel.value
    self.name = f"<{sizes}, {element.name}>"


def init_tensor(self: tl.tensor, handle: TensorHandle, kind: tl.dtype) -> None:
    """A tensor whose shape is made once; the interpreter makes one for each tensor."""
    self.handle, self.type, self.dtype = handle, kind, kind.scalar
    sizes = tuple(kind.shape.values) if kind.is_block() else ()
    _, self.shape, self.numel = shape_constants(sizes)


def equal_tuples(self: tl.tuple, other: Any) -> tl.constexpr:
    """Whether the elements are equal; the interpreter makes another tuple to find that out."""
    return tl.constexpr(list(self.values) == list(getattr(other, "values", other)))


tl.tuple.__eq__ = equal_tuples
tl.block_type.__init__ = init_known_block_type
tl.tensor.__init__ = init_tensor

patch_language = triton_interpreter._patch_lang


@functools.cache
def patch_modules(*modules: types.ModuleType) -> None:
    """Make the language's functions those of the interpreter, for the rest of the process."""
    patch_language(types.SimpleNamespace(__globals__=dict(enumerate(modules))))
    # A bound of `range` that is an argument is an array of one number, which NumPy takes for none.
    tl.tensor.__index__ = lambda self: self.handle.data.item()


def patch_language_once(function: Any) -> triton_interpreter._LangPatchScope:
    """What replaces a function's language; the interpreter does so at each call of a function."""
    known = (tl, tl.core)
    modules = [each for each in function.__globals__.values() if any(each is m for m in known)]
    patch_modules(*modules)
    return triton_interpreter._LangPatchScope()


triton_interpreter._patch_lang = patch_language_once


def combine(
    operator: Callable[..., Any], left: Iterable[Any], right: Iterable[Any], types: Sequence[Any]
) -> list[Any]:
    """The arrays of what a combine function makes of arrays of these scalar types."""
    operands = [
        tl.tensor(TensorHandle(array, kind), tl.block_type(kind, list(array.shape)))
        for arrays in (left, right)
        for array, kind in zip(arrays, types, strict=True)
    ]
    results = operator(*operands)
    results = results if isinstance(results, tuple) else (results,)
    return [one.handle.data.astype(numpy_type(t)) for one, t in zip(results, types, strict=True)]


def reduce_in_pairs(self: ReduceOps, given: Sequence[Any]) -> list[Any]:
    """Neighbours in a block are combined until one is left: a call of the combine function a level,
    as in a warp. The interpreter's own `generic_reduce` calls it for each element.
    """
    tensors, axis = self.unravel(given, self.axis)
    arrays = [tensor.handle.data for tensor in tensors]
    types = [tensor.dtype.scalar for tensor in tensors]
    while arrays[0].shape[axis] > 1:  # a power of two
        pairs = ([np.moveaxis(array, axis, 0)[start::2] for array in arrays] for start in (0, 1))
        operands = [[np.moveaxis(array, 0, axis) for array in each] for each in pairs]
        arrays = combine(self.combine_fn.fn, *operands, types)
    if self.axis is None:
        shape = (1,) * given[0].handle.data.ndim if self.keep_dims else ()
        arrays = [array.reshape(shape) for array in arrays]
    elif not self.keep_dims:
        arrays = [array.squeeze(axis) for array in arrays]
    return [self.to_tensor(array, kind) for array, kind in zip(arrays, types, strict=True)]


def scan_by_doubling(self: ScanOps, given: Sequence[Any]) -> list[Any]:
    """Each element is combined with what ends 1, 2, 4, ... before it, as in a warp."""
    arrays = [tensor.handle.data for tensor in given]
    types = [tensor.dtype.scalar for tensor in given]
    places = np.arange(arrays[0].shape[self.axis])
    places = places.reshape([-1 if d == self.axis else 1 for d in range(arrays[0].ndim)])
    distance = 1
    while distance < places.size:
        before = [np.roll(array, distance, self.axis) for array in arrays]
        combined = combine(self.combine_fn.fn, before, arrays, types)
        pairs = zip(combined, arrays, strict=True)
        arrays = [np.where(places >= distance, new, old) for new, old in pairs]
        distance *= 2
    return [self.to_tensor(array, kind) for array, kind in zip(arrays, types, strict=True)]


ReduceOps.generic_reduce = reduce_in_pairs
ScanOps.generic_scan = scan_by_doubling


def for_interpreter(source: str) -> str:
    """The source without what the interpreter does not know: libdevice, a range from a tensor."""
    source = source.replace("from triton.language.extra import libdevice\n", "")
    source = source.replace("range(tl.program_id(0),", "range(tl.program_id(0).handle.data.item(),")
    source = re.sub(r"range\(0, (count\b[^)]*)\)", r"range(0, (\1).handle.data.item())", source)
    bounds = "range(first.handle.data.item(), behind.handle.data.item())"
    return source.replace("range(first, behind)", bounds)


def is_bytes(dtype: torch.dtype) -> bool:
    """Whether kernels take the elements as bytes."""
    return dtype is torch.bool or (dtype.is_floating_point and dtype.itemsize == 1)


def run(
    source: str,
    name: str,
    buffers: Sequence[torch.Tensor],
    ints: Sequence[int],
    grid: tuple[int, ...],
    meta: dict[str, Any],
) -> None:
    """Run the function `name` of `source` over `grid` programs; bool tensors go as bytes. A kernel
    that a GPU runs with `debug` fails here, too, where an assertion does; any kernel does that
    accesses other memory than its buffers'.
    """
    interpreter_builder.options = dataclasses.replace(
        interpreter_builder.options,
        debug=bool(meta["debug"]),
        sanitize_overflow=bool(meta.get("sanitize_overflow")),
    )
    # Triton reads a kernel's source through its file.
    with tempfile.NamedTemporaryFile("w", suffix=".py", delete=False) as file:
        file.write(for_interpreter(source))
    try:
        module = types.ModuleType("generated")
        module.__dict__["libdevice"] = numpy_libdevice()
        exec(compile(open(file.name).read(), file.name, "exec"), module.__dict__)  # noqa: SIM115
        passed = [b.view(torch.uint8) if is_bytes(b.dtype) else b for b in buffers]
        with within(passed, file.name):
            getattr(module, name)[grid](*passed, *ints, **meta["constants"])
    finally:
        os.unlink(file.name)


def run_kernel(
    kernel: LoopKernel,
    tiling: Tiling | MatmulTiling,
    buffers: Sequence[torch.Tensor],
    ints: Sequence[int],
) -> None:
    """Generate Triton for a kernel of the loop IR and run it on tensors, each from its data pointer
    on.
    """
    from flambeau_inductor.codegen.triton.backend import launch_grid, meta, write
    from flambeau_inductor.ir import ScheduledKernel

    names = tuple(param.name for param in kernel.params)
    dims = launch_grid(ScheduledKernel(kernel, names, tuple(ints), "cuda:0"), tiling)
    programs = [dim if isinstance(dim, int) else eval(dim) for dim in dims]
    text = write(kernel, "generated", tiling)
    run(text, "generated", buffers, ints, tuple(programs), meta(kernel, tiling))
