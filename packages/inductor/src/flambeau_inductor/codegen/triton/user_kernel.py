"""Launch the program's own Triton kernels as those that are generated here.

    extern flambeau_kernel.add_0(arg0, buf0, [s0], [(s0 + 127)//128, 1, 1])
    ->  launch add_0(arg0, buf0; s0), grid (s0 + 127)//128

A generated function passes its arguments on to the kernel: pointers first, then ints, as Programs
have them. Ints get the types and properties that Triton finds when it launches a kernel: 32 bits
where they are enough, the constant 1, multiples of 16. Symbolic sizes have 32 bits if those seen
while tracing have, which is guarded.

What a Program cannot launch stays a call of the operator: kernels that Triton tunes, options other
than warps and stages, kernels whose text is not whole, or that need memory beside their arguments.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from flambeau_inductor.codegen.triton.kernel_text import constant_text, kernel_text
from flambeau_inductor.codegen.triton.ops import POINTER_TYPES
from flambeau_inductor.nodes import SizeRef, TensorRef
from flambeau_prims import sizes
from flambeau_prims.kernel_launches import (
    ConstantArgument,
    FloatArgument,
    NumberArgument,
    TensorArgument,
    WindowArgument,
    has_strides,
)
from flambeau_prims.size_floats import FloatExpr
from flambeau_prims.sizes import Expr
from flambeau_runtime.program import Kernel, Source

if TYPE_CHECKING:
    from flambeau_inductor.nodes import ExternCall
    from flambeau_prims.kernel_launches import Argument, KernelLaunch
    from flambeau_prims.spec import Size

_POINTER_TYPES = POINTER_TYPES | {
    torch.bool: "*i1",
    torch.uint16: "*u16",
    torch.uint32: "*u32",
    torch.uint64: "*u64",
    torch.float8_e4m3fn: "*fp8e4nv",
    torch.float8_e5m2: "*fp8e5",
}
_FLOAT_TYPES = {
    "fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp64": "float64",
}  # fmt: skip
_INT32 = 2**31
_DEFAULT_WARPS, _DEFAULT_STAGES = 4, 3
_NEEDS_MEMORY = ("tensor_descriptor", "tensormap", "device_print", "inline_asm")
"""Parts of texts of kernels that need memory which Triton's launcher hands over, or that print."""


@dataclass
class UserLaunch:
    """A launch as a Program has it; `sizes` are ints, Exprs or FloatExprs."""

    kernel: Kernel
    source: Source
    buffers: list[TensorRef]
    sizes: list[Any]
    grid: list[Size]


def lower_user_launch(launch: KernelLaunch, call: ExternCall) -> UserLaunch | None:
    """A call of a launch's operator as a launch, or None if the call has to stay."""
    kernel = launch.kernel
    if not launch.parameters or not call.device.startswith("cuda"):
        return None
    count = len(launch.tensors)
    specs = [ref.spec for ref in call.args[:count]]
    if not has_strides(specs, [_size(item) for item in call.args[count + 1]]):
        return None
    writer = _Wrapper(launch, call)
    if not writer.run():
        return None
    text = kernel_text(kernel, writer.functions)
    if text is None or any(part in text for part in _NEEDS_MEMORY):
        return None
    meta = writer.meta()
    digest = hashlib.sha256(repr((text, writer.passed, meta)).encode()).hexdigest()
    name = f"launch_{launch.name}_{digest[:8]}"
    return UserLaunch(
        Kernel(name, 0, meta),
        Source("triton", f"{text}\n\n{writer.text(name)}"),
        writer.buffers,
        writer.sizes,
        [_size(item) for item in call.args[-1]],
    )


@dataclass
class _Wrapper:
    """The function that passes the arguments on."""

    launch: KernelLaunch
    call: ExternCall
    buffers: list[TensorRef] = field(default_factory=list)
    sizes: list[Any] = field(default_factory=list)
    pointers: dict[str, str] = field(default_factory=dict)
    ints: dict[str, str] = field(default_factory=dict)
    divisible: list[str] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)
    passed: list[str] = field(default_factory=list)
    functions: list[Any] = field(default_factory=list)

    def run(self) -> bool:
        """Whether every argument can be passed."""
        launch = self.launch
        given = dict(zip(launch.parameters, launch.positional, strict=False)) | dict(launch.named)
        self.parameters = {parameter.name: parameter for parameter in launch.kernel.params}
        for name, argument in given.items():
            if name in self.parameters:
                text = self.argument(name, argument)
                if text is None:
                    return False
                self.passed.append(f"{name}={text}")
            elif isinstance(argument, ConstantArgument):
                self.options[name] = argument.value
        others = self.options.keys() - {"num_warps", "num_stages", "num_ctas"}
        plain = self.options.get("num_ctas", 1) == 1
        return plain and all(self.options[name] is None for name in others) and bool(self.buffers)

    def meta(self) -> dict[str, Any]:
        """What the build needs."""
        return {
            "signature": self.pointers | self.ints,
            "constants": {},
            "num_warps": self.options.get("num_warps") or _DEFAULT_WARPS,
            "num_stages": self.options.get("num_stages") or _DEFAULT_STAGES,
            "divisible_by_16": [*self.pointers, *self.divisible],
            "debug": bool(self.launch.kernel.debug),
            "sanitize_overflow": bool(self.launch.kernel.debug),
        }

    def text(self, name: str) -> str:
        """The function."""
        parameters = ", ".join([*self.pointers, *self.ints])
        call = f"{self.launch.kernel.fn.__name__}({', '.join(self.passed)})"
        return f"@triton.jit\ndef {name}({parameters}):\n    {call}\n"

    def argument(self, name: str, argument: Argument) -> str | None:
        """An argument of the kernel, as the function passes it."""
        count = len(self.launch.tensors)
        match argument:
            case TensorArgument(number):
                return self.pointer(self.call.args[number])
            case WindowArgument(number, first, ndim):
                numbers = [_size(item) for item in self.call.args[count]]
                base, end = self.call.args[number], first + 2 * ndim
                spec = base.spec.replace(
                    shape=tuple(numbers[first : first + ndim]),
                    stride=tuple(numbers[first + ndim : end]),
                    offset=base.spec.offset + numbers[end],
                )
                return self.pointer(TensorRef(base.buffer, spec))
            case NumberArgument(number):
                return self.integer(name, _size(self.call.args[count][number]))
            case FloatArgument(number):
                return self.float(name, _size(self.call.args[count + 2 + number]))
            case ConstantArgument(value):
                return self.constant(name, value)

    def pointer(self, ref: TensorRef) -> str | None:
        kind = _POINTER_TYPES.get(ref.spec.dtype)
        if kind is None:
            return None
        name = f"p{len(self.buffers)}"
        self.buffers.append(ref)
        self.pointers[name] = kind
        return name

    def integer(self, name: str, size: Size) -> str | None:
        """An int: a constant 1, or a parameter of the type that Triton finds for its value."""
        parameter = self.parameters[name]
        if parameter.is_constexpr:
            return None
        declared = parameter.annotation_type
        special = not parameter.do_not_specialize
        if special and not declared and size == 1:
            return "1"
        if declared and declared not in ("i32", "i64"):
            return None
        narrow = declared == "i32" if declared else _is_narrow(size)
        if not isinstance(size, Expr) and not -(2**63) <= size < 2**63:
            return None
        passed = f"n{len(self.sizes)}"
        self.sizes.append(size)
        self.ints[passed] = "i32" if narrow else "i64"
        if special and not parameter.do_not_specialize_on_alignment and _is_divisible(size):
            self.divisible.append(passed)
        return passed

    def float(self, name: str, number: Any) -> str | None:
        """A float, which has 32 bits unless the kernel declares others."""
        declared = self.parameters[name].annotation_type or "fp32"
        if declared not in _FLOAT_TYPES:
            return None
        kind = f"triton.language.{_FLOAT_TYPES[declared]}"
        if not isinstance(number, FloatExpr):
            return f"triton.language.full([], {constant_text(float(number))}, {kind})"
        if number.symbol is None:
            return None
        passed = f"n{len(self.sizes)}"
        self.sizes.append(number)
        self.ints[passed] = "i64"
        return f"{passed}.to(triton.language.float64, bitcast=True).to({kind})"

    def constant(self, name: str, value: Any) -> str | None:
        parameter = self.parameters[name]
        if parameter.is_constexpr and type(value).__name__ == "JITFunction":
            self.functions.append(value)
            return str(value.fn.__name__)
        if parameter.is_constexpr or value is None:
            return constant_text(value)
        if type(value) is bool and not parameter.annotation_type:
            return f"triton.language.full([], {int(value)}, triton.language.int1)"
        return None


def _size(item: Any) -> Any:
    return item.size if isinstance(item, SizeRef) else item


def _is_narrow(size: Size) -> bool:
    """Whether 32 bits hold an int; of a symbolic one that is guarded."""
    if not isinstance(size, Expr):
        return -_INT32 <= size < _INT32
    return sizes.lt(size, _INT32) and sizes.ge(size, -_INT32)


def _is_divisible(size: Size) -> bool:
    """Whether an int is known to be a multiple of 16."""
    if not isinstance(size, Expr):
        return size % 16 == 0
    return all(coefficient % 16 == 0 for _, coefficient in size.terms)
