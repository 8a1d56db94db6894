"""Programs as text, as in `program`'s docstring: one stable line a step."""

from __future__ import annotations

from typing import Any

from flambeau_runtime.program import (
    Allocate,
    Device,
    Dim,
    Dtype,
    Extern,
    Float,
    Free,
    Launch,
    Layout,
    MemoryFormat,
    Program,
    Ref,
    Reserve,
    SizeExpr,
    Step,
    Symbol,
    Tensor,
    View,
)


def format_program(program: Program) -> str:
    """The whole program, without the text of its sources."""
    tensors = {tensor.name: tensor for tensor in program.tensors}
    heads = [
        _declaration(tensors[name]) if name in tensors else f"{name}: int"
        for name in program.inputs
    ]
    lines = [] if program.prepared is None else [f"prepared {format_program(program.prepared)}"]
    lines.append(f"{program.name}({', '.join(heads)}) {{")
    if program.symbols:
        origins = [
            f"{symbol.name} = {_origin(symbol, program.inputs[symbol.input])}"
            for symbol in program.symbols
        ]
        lines.append(f"  symbols: {', '.join(origins)}")
    lines += [f"  {format_step(step, tensors)}" for step in program.steps]
    if program.mutated:
        lines.append(f"  mutated {', '.join(program.mutated)}")
    if any(count != 1 for count in program.write_counts):
        lines.append(f"  write counts {', '.join(map(str, program.write_counts))}")
    outputs = [out.text if isinstance(out, SizeExpr) else str(out) for out in program.outputs]
    lines += [f"  return ({', '.join(outputs)}{',' if len(outputs) == 1 else ''})", "}"]
    return "\n".join(lines)


def format_step(step: Step, tensors: dict[str, Tensor]) -> str:
    """One step on one line."""
    if isinstance(step, Allocate):
        took = "overwrite" if step.in_place else "reuse"
        verb = "allocate" if step.reuse is None else f"{took} {step.reuse} as"
        return f"{step.name} = {verb} {format_tensor(tensors[step.name])}"
    if isinstance(step, View):
        return f"{step.name} = view {step.base} as {format_tensor(tensors[step.name])}"
    if isinstance(step, Launch):
        ints = f"; {_dims(step.ints)}" if step.ints else ""
        grid = f" on grid [{_dims(step.grid)}]" if step.grid else ""
        return f"launch {step.kernel}({', '.join(step.buffers)}{ints}){grid}"
    if isinstance(step, Extern):
        return _format_extern(step)
    if isinstance(step, Reserve):
        return (
            f"{step.name} = reserve {step.increment} of {step.device}, as {', '.join(step.symbols)}"
        )
    if isinstance(step, Free):
        return f"free {step.name}"
    raise TypeError(f"not a step: {step!r}")


def _origin(symbol: Symbol, source: str) -> str:
    if symbol.is_float:
        return f"bits of {source}"
    if symbol.is_element:
        return f"{source}[{symbol.dim}]"
    return source if symbol.dim is None else f"{source}.shape[{symbol.dim}]"


def format_tensor(tensor: Tensor) -> str:
    """`float32[s0, 768]`, with stride, offset and device where they are not the usual."""
    text = f"{tensor.dtype}[{_dims(tensor.shape)}]"
    if tensor.stride != contiguous(tensor.shape):
        text += f" stride [{_dims(tensor.stride)}]"
    if tensor.offset != 0:
        text += f" offset {tensor.offset}"
    return text if tensor.device == "cpu" else f"{text} {tensor.device}"


def contiguous(shape: tuple[Dim, ...]) -> tuple[Dim, ...] | None:
    """Row-major strides; None for a symbolic size: then strides are always printed."""
    strides: list[Dim] = []
    running: int | None = 1
    for size in reversed(shape):
        if running is None:
            return None
        strides.append(running)
        running = running * max(size, 1) if isinstance(size, int) else None
    return tuple(reversed(strides))


def _format_extern(step: Extern) -> str:
    args = [_argument(arg) for arg in step.args]
    args += [f"{key}={_argument(value)}" for key, value in step.kwargs.items()]
    args += [f"{key}={name}" for key, name in step.out]
    results = ", ".join("_" if name is None else name for name in step.outputs)
    call = f"extern {step.op}({', '.join(args)})"
    return f"{results} = {call}" if results else call


def _argument(arg: Any) -> str:
    if isinstance(arg, (Ref, Dtype, Device, Layout, MemoryFormat)):
        return arg.name
    if isinstance(arg, (SizeExpr, Float)):
        return arg.text
    if isinstance(arg, list):
        return f"[{', '.join(map(_argument, arg))}]"
    if isinstance(arg, tuple):
        return f"({', '.join(map(_argument, arg))}{',' if len(arg) == 1 else ''})"
    return repr(arg)


def _declaration(tensor: Tensor) -> str:
    return f"{tensor.name}: {format_tensor(tensor)}"


def _dims(dims: tuple[Dim, ...]) -> str:
    return ", ".join(map(str, dims))
