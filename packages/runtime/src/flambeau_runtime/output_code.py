"""Programs as Python files for people: readable, and runnable as they are.

    python output_code.py          # builds the kernels, makes random inputs, runs and times the
                                   program

The file calls the same kernels as the executor does, through `loose_kernels`, and allocates and
calls ATen by torch's public names.
"""

from __future__ import annotations

from typing import Any

from flambeau_runtime.dims import difference
from flambeau_runtime.externs import grad_mode_of, refs_of
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
    SizeExpr,
    Step,
    Tensor,
    View,
)

_HEAD = '''\
"""The compiled program `{name}`, written out by Flambeau.

Run this file to build it and to run it on random inputs.
"""

import torch
'''

_MAIN = """

if __name__ == "__main__":
    import time

    inputs = example_inputs()
    call(*inputs)
    began = time.perf_counter()
    results = call(*inputs)
    print(f"{(time.perf_counter() - began) * 1e3:.3f} ms a call")
    for result in results:
        print(f"{result.dtype}{list(result.shape)}" if isinstance(result, torch.Tensor) else result)
"""

_SCRATCH = """import triton

triton.set_allocator(
    lambda size, alignment, stream: torch.empty(size, dtype=torch.uint8, device="cuda")
)
"""
"""Who gives kernels scratch memory that Triton launches; a Program passes it as a buffer."""

EXAMPLE_SIZE = 8
"""What each symbol is in `example_inputs`: a Program does not hold the sizes it was traced with."""


def output_code(program: Program) -> str:
    """The file's text."""
    tensors = {tensor.name: tensor for tensor in program.tensors}
    parts = [_HEAD.format(name=program.name)]
    if any(source.language == "cpp" for source in program.sources):
        parts.append("from flambeau_runtime.loose_kernels import cpp_kernels\n")
    if any(symbol.is_float for symbol in program.symbols):
        parts.append("from flambeau_runtime.externs import bits_of, float_of\n")
    if any("scratch" in kernel.meta for kernel in program.kernels):
        parts.append(_SCRATCH)
    parts += [_source(program, index) for index in range(len(program.sources))]
    parts += ["\n", _call(program, tensors), "\n\n", _example_inputs(program, tensors), _MAIN]
    return "".join(parts)


def _source(program: Program, index: int) -> str:
    source = program.sources[index]
    if source.language != "cpp":
        return f"\n# {source.language} source {index}\n{source.text.rstrip()}\n"
    names = [kernel for kernel in program.kernels if kernel.source == index]
    targets = ", ".join(kernel.name for kernel in names)
    wanted = ", ".join(
        f'"{kernel.name}{"!" if kernel.meta.get("checked") else ""}"' for kernel in names
    )
    text = source.text.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
    return f'\n({targets},) = cpp_kernels(\n    """\n{text}""",\n    {wanted},\n)\n'


def _call(program: Program, tensors: dict[str, Tensor]) -> str:
    lines = ["@torch.no_grad()", f"def call({', '.join(program.inputs)}):"]
    for symbol in program.symbols:
        name = program.inputs[symbol.input]
        size = name if symbol.dim is None else f"{name}.shape[{symbol.dim}]"
        lines.append(f"    {symbol.name} = {f'bits_of({name})' if symbol.is_float else size}")
    for step in program.steps:
        lines += [f"    {line}" for line in _step(step, program, tensors)]
    outputs = [out.text if isinstance(out, SizeExpr) else str(out) for out in program.outputs]
    lines.append(f"    return ({', '.join(outputs)}{',' if len(outputs) == 1 else ''})")
    return "\n".join(lines) + "\n"


def _step(step: Step, program: Program, tensors: dict[str, Tensor]) -> list[str]:
    if isinstance(step, Allocate):
        tensor = tensors[step.name]
        if step.in_place:
            layout = f"{_dims(tensor.shape)}, {_dims(tensor.stride)}"
            return [f"{step.name} = {step.reuse}.as_strided({layout})", f"del {step.reuse}"]
        result = (
            f"{step.name} = torch.empty_strided({_dims(tensor.shape)}, {_dims(tensor.stride)}, "
            f"dtype=torch.{tensor.dtype}, device={tensor.device!r})"
        )
        return [result] if step.reuse is None else [f"del {step.reuse}", result]
    if isinstance(step, View):
        tensor = tensors[step.name]
        moved = difference(tensor.offset, tensors[step.base].offset)
        where = (
            f"{step.base}.storage_offset() + {moved}, {_dims(tensor.shape)}, {_dims(tensor.stride)}"
        )
        empty = f"torch.empty(0, dtype=torch.{tensor.dtype}, device={tensor.device!r})"
        return [f"{step.name} = {empty}.set_({step.base}.untyped_storage(), {where})"]
    if isinstance(step, Launch):
        return [_launch(step, program)]
    if isinstance(step, Extern):
        return _extern(step)
    if isinstance(step, Free):
        return [f"del {step.name}"]
    raise TypeError(f"not a step: {step!r}")


def _launch(step: Launch, program: Program) -> str:
    kernel = next(kernel for kernel in program.kernels if kernel.name == step.kernel)
    if program.sources[kernel.source].language == "cpp":
        ints = f", [{', '.join(map(str, step.ints))}]" if step.ints else ""
        return f"{step.kernel}([{', '.join(step.buffers)}]{ints})"
    constants = [f"{name}={value}" for name, value in kernel.meta.get("constants", {}).items()]
    constants += [
        f"{name}={kernel.meta[name]}" for name in ("num_warps", "num_stages") if name in kernel.meta
    ]
    buffers = step.buffers[:-1] if "scratch" in kernel.meta else step.buffers
    arguments = ", ".join([*buffers, *map(str, step.ints), *constants])
    return f"{step.kernel}[{_dims(step.grid)}]({arguments})"


def _extern(step: Extern) -> list[str]:
    args = [_argument(arg) for arg in step.args]
    args += [f"{key}={_argument(value)}" for key, value in step.kwargs.items()]
    args += [f"{key}={name}" for key, name in step.out]
    call = f"torch.ops.{step.op}({', '.join(args)})"
    names = ["_" if name is None else name for name in step.outputs]
    line = f"{', '.join(names)} = {call}" if names else call
    if grad_mode_of(step):
        return ["with torch.enable_grad():", f"    {line}"]
    return [line]


def _argument(arg: Any) -> str:
    if isinstance(arg, Ref):
        return arg.name
    if isinstance(arg, SizeExpr):
        return arg.text
    if isinstance(arg, Float):
        return f"float_of({arg.text})"
    if isinstance(arg, Device):
        return f"torch.device({arg.name!r})"
    if isinstance(arg, (Dtype, Layout, MemoryFormat)):
        return f"torch.{arg.name}"
    if isinstance(arg, list):
        return f"[{', '.join(map(_argument, arg))}]"
    if isinstance(arg, tuple):
        return f"({', '.join(map(_argument, arg))}{',' if len(arg) == 1 else ''})"
    if (isinstance(arg, float) and arg != arg) or arg in (float("inf"), float("-inf")):
        return f'float("{arg}")'
    return repr(arg)


def _example_inputs(program: Program, tensors: dict[str, Tensor]) -> str:
    lines = ["def example_inputs():"]
    lines += [f"    {symbol.name} = {EXAMPLE_SIZE}" for symbol in program.symbols]
    lines.append("    torch.manual_seed(0)")
    indices = _index_inputs(program)
    floats = {program.inputs[symbol.input] for symbol in program.symbols if symbol.is_float}
    ints = {
        program.inputs[symbol.input]: symbol.name
        for symbol in program.symbols
        if symbol.dim is None
    }
    for name in program.inputs:
        tensor = tensors.get(name)
        if tensor is None:
            lines.append(f"    {name} = {1.0 if name in floats else ints.get(name, 1)}")
            continue
        lines.append(
            f"    {name} = torch.empty_strided({_dims(tensor.shape)}, {_dims(tensor.stride)}, "
            f"dtype=torch.{tensor.dtype}, device={tensor.device!r})"
        )
        lines.append(f"    {name}{_fill(tensor, name in indices)}")
    lines.append(
        f"    return ({', '.join(program.inputs)}{',' if len(program.inputs) == 1 else ''})"
    )
    return "\n".join(lines) + "\n"


def _index_inputs(program: Program) -> set[str]:
    """Inputs of checked kernels, which may be indices: they are filled with zeros."""
    checked = {kernel.name for kernel in program.kernels if kernel.meta.get("checked")}
    result = {
        name
        for step in program.steps
        if isinstance(step, Launch) and step.kernel in checked
        for name in step.buffers
    }
    return result | {
        name
        for step in program.steps
        if isinstance(step, Extern)
        for name in refs_of((step.args, step.kwargs))
    }


def _fill(tensor: Tensor, is_index: bool) -> str:
    if tensor.dtype.startswith(("float", "bfloat", "complex")):
        return ".normal_()"
    if tensor.dtype == "bool" or is_index:
        return ".zero_()"
    return ".random_(0, 2)"


def _dims(dims: tuple[Dim, ...]) -> str:
    return f"({', '.join(map(str, dims))}{',' if len(dims) == 1 else ''})"
