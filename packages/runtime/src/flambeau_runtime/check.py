"""The checker of Programs: what the executors rely on, checked before they do.

`check_program` looks at the Program alone; `check_arguments` at one call's arguments. Both raise
with the offending step or argument in the text.
"""

from __future__ import annotations

from typing import Any

import torch

from flambeau_runtime.dims import evaluate, symbols_of
from flambeau_runtime.externs import markers_in, refs_of
from flambeau_runtime.program import (
    Allocate,
    Dim,
    Extern,
    Float,
    Free,
    Launch,
    Program,
    Reserve,
    SizeExpr,
    Step,
    Symbol,
    Tensor,
    View,
)
from flambeau_runtime.program_text import format_step


class ProgramError(ValueError):
    """A Program that breaks a rule of its format."""


def check_program(program: Program) -> None:
    """Raise ProgramError unless names are declared once, written before read, not used freed."""
    tensors = {tensor.name: tensor for tensor in program.tensors}
    if len(tensors) != len(program.tensors):
        raise ProgramError(f"{program.name}: a tensor is declared twice")
    symbols = _check_symbols(program, tensors)
    for tensor in program.tensors:
        _check_tensor(program, tensor, symbols)
    kernels = {kernel.name for kernel in program.kernels}
    for kernel in program.kernels:
        if not 0 <= kernel.source < len(program.sources):
            raise ProgramError(
                f"{program.name}: kernel {kernel.name} names source {kernel.source}, which "
                f"is not there"
            )
    live = {name for name in program.inputs if name in tensors}
    symbols = set(symbols)
    for step in program.steps:
        try:
            _check_step(step, tensors, kernels, symbols, live)
        except ProgramError as error:
            shown = (
                format_step(step, tensors)
                if not isinstance(step, (Allocate, View)) or step.name in tensors
                else step
            )
            raise ProgramError(f"{program.name}: {error}, in `{shown}`") from None
    for out in program.outputs:
        if isinstance(out, SizeExpr):
            _check_dims((out.text,), symbols)
        elif out is not None and out not in live:
            raise ProgramError(f"{program.name}: output {out} is not there at the end")
    for name in program.mutated:
        if name not in program.inputs:
            raise ProgramError(f"{program.name}: mutated {name} is not an input")
    if program.write_counts and len(program.write_counts) != len(program.mutated):
        raise ProgramError(f"{program.name}: write_counts has not one entry for each mutated input")


def _check_symbols(program: Program, tensors: dict[str, Tensor]) -> set[str]:
    symbols: set[str] = set()
    for symbol in program.symbols:
        if symbol.name in symbols:
            raise ProgramError(f"{program.name}: symbol {symbol.name} is declared twice")
        if not 0 <= symbol.input < len(program.inputs):
            raise ProgramError(
                f"{program.name}: symbol {symbol.name} comes from input {symbol.input}, "
                f"which is not there"
            )
        source = tensors.get(program.inputs[symbol.input])
        if symbol.is_element:
            _check_element(program, symbol, source)
            symbols.add(symbol.name)
            continue
        if (symbol.dim is None) != (source is None):
            raise ProgramError(
                f"{program.name}: symbol {symbol.name} must come from an int input, or "
                f"from a tensor's dim"
            )
        if source is not None and not 0 <= (symbol.dim or 0) < len(source.shape):
            raise ProgramError(
                f"{program.name}: symbol {symbol.name}: {source.name} has no dim {symbol.dim}"
            )
        symbols.add(symbol.name)
    return symbols


def _check_element(program: Program, symbol: Symbol, source: Tensor | None) -> None:
    plain = source is not None and (source.dtype, source.device) == ("int64", "cpu")
    if not plain or source is None or source.stride != (1,):
        raise ProgramError(
            f"{program.name}: symbol {symbol.name} must be an element of a contiguous int64 tensor "
            f"of the CPU"
        )
    size = source.shape[0]
    if not isinstance(size, int) or not 0 <= (-1 if symbol.dim is None else symbol.dim) < size:
        raise ProgramError(f"{program.name}: symbol {symbol.name}: no element {symbol.dim}")


def _check_tensor(program: Program, tensor: Tensor, symbols: set[str]) -> None:
    if len(tensor.shape) != len(tensor.stride):
        raise ProgramError(f"{program.name}: shape and stride of {tensor.name} differ in length")
    if not isinstance(getattr(torch, tensor.dtype, None), torch.dtype):
        raise ProgramError(f"{program.name}: {tensor.name} has an unknown dtype {tensor.dtype!r}")
    _check_dims((*tensor.shape, *tensor.stride, tensor.offset), symbols)


def _check_dims(dims: tuple[Dim, ...], symbols: set[str]) -> None:
    for dim in dims:
        try:
            unknown = symbols_of(dim) - symbols
        except ValueError as error:
            raise ProgramError(str(error)) from None
        if unknown:
            raise ProgramError(f"unknown symbol {', '.join(sorted(unknown))} in {dim!r}")


def _check_step(
    step: Step, tensors: dict[str, Tensor], kernels: set[str], symbols: set[str], live: set[str]
) -> None:
    if isinstance(step, Free):
        _need(step.name, live)
        live.discard(step.name)
    elif isinstance(step, Launch):
        if step.kernel not in kernels:
            raise ProgramError(f"there is no kernel {step.kernel}")
        for name in step.buffers:
            _need(name, live)
        _check_dims((*step.ints, *step.grid), symbols)
    elif isinstance(step, Extern):
        if step.outputs and step.out:
            raise ProgramError("an extern call has either results or out= tensors")
        for name in refs_of((step.args, step.kwargs)):
            _need(name, live)
        for number in markers_in((step.args, step.kwargs), Float):
            if number.text not in symbols:
                raise ProgramError(f"unknown float {number.text!r}")
        for _, name in step.out:
            _need(name, live)
        for result in step.outputs:
            if result is not None:
                _define(result, tensors, live)
    elif isinstance(step, Reserve):
        _check_dims((step.increment,), symbols)
        for name in step.symbols:
            if name in symbols:
                raise ProgramError(f"symbol {name} is declared twice")
            symbols.add(name)
        _define(step.name, tensors, live)
        tensor = tensors[step.name]
        if (tensor.shape, tensor.dtype, tensor.device) != ((2,), "int64", "cpu"):
            raise ProgramError(f"{step.name} must be int64[2] on the CPU")
    elif isinstance(step, View):
        _need(step.base, live)
        _define(step.name, tensors, live)
    elif isinstance(step, Allocate):
        if step.reuse is not None:
            _need(step.reuse, live)
            live.discard(step.reuse)
            old, new = tensors[step.reuse], tensors.get(step.name)
            if step.in_place and new is not None and new.dtype != old.dtype:
                raise ProgramError(f"{step.reuse} of another dtype is overwritten in place")
        _define(step.name, tensors, live)
    else:
        raise ProgramError("not a step")


def _need(name: str, live: set[str]) -> None:
    if name not in live:
        raise ProgramError(f"{name} is read before it is made or after it is freed")


def _define(name: str, tensors: dict[str, Tensor], live: set[str]) -> None:
    if name not in tensors:
        raise ProgramError(f"{name} is not declared")
    if name in live:
        raise ProgramError(f"{name} is made twice")
    live.add(name)


def check_arguments(program: Program, args: tuple[Any, ...]) -> None:
    """Raise TypeError or ValueError unless the arguments are as the Program's inputs say."""
    if len(args) != len(program.inputs):
        raise TypeError(
            f"{program.name} takes {len(program.inputs)} positional arguments, got {len(args)}"
        )
    tensors = {tensor.name: tensor for tensor in program.tensors}
    symbols = {}
    floats = {symbol.input for symbol in program.symbols if symbol.is_float}
    for symbol in program.symbols:
        arg = args[symbol.input]
        if not symbol.is_float and not symbol.is_element:
            symbols[symbol.name] = arg if symbol.dim is None else arg.shape[symbol.dim]
    for position, (name, arg) in enumerate(zip(program.inputs, args, strict=True)):
        declared = tensors.get(name)
        where = f"{program.name}: argument {position} ({name})"
        if declared is None:
            kind = float if position in floats else int
            if not isinstance(arg, kind):
                raise TypeError(f"{where} must be a {kind.__name__}, not {type(arg).__name__}")
            continue
        if not isinstance(arg, torch.Tensor):
            raise TypeError(f"{where} must be a tensor, not {type(arg).__name__}")
        shape = tuple(evaluate(dim, symbols) for dim in declared.shape)
        stride = tuple(evaluate(dim, symbols) for dim in declared.stride)
        device = torch.device(declared.device)
        if arg.dtype != getattr(torch, declared.dtype) or arg.device.type != device.type:
            raise ValueError(
                f"{where} must be {declared.dtype} on {declared.device}, not {arg.dtype} "
                f"on {arg.device}"
            )
        if tuple(arg.shape) != shape:
            raise ValueError(f"{where} must have shape {shape}, not {tuple(arg.shape)}")
        # A tensor in a library's own order has no strides to speak of.
        differing = arg.layout is torch.strided and any(
            size > 1 and want != have
            for size, want, have in zip(shape, stride, arg.stride(), strict=True)
        )
        if differing and arg.numel():
            raise ValueError(f"{where} must have stride {stride}, not {arg.stride()}")
