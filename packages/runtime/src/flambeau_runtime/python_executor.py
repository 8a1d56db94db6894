"""The reference executor: a Program step by step in Python; slow, and needs no C extension."""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Mapping
from typing import Any

import torch

from flambeau_runtime import random_state
from flambeau_runtime.dims import difference, evaluate
from flambeau_runtime.externs import (
    bits_of,
    float_of,
    grad_mode_of,
    map_argument,
    operator_of,
    out_of_bounds,
    view_of,
)
from flambeau_runtime.profile_names import name_of_program, name_of_step, range_of
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
    View,
)

_ARGUMENTS = (ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_int64))
_KERNEL_TYPE = ctypes.CFUNCTYPE(None, *_ARGUMENTS)
_CHECKED_KERNEL_TYPE = ctypes.CFUNCTYPE(ctypes.c_int64, *_ARGUMENTS)


class PythonExecutor:
    """A Program ready to run. Immutable: calls keep their state, so threads may share it."""

    def __init__(
        self, program: Program, kernels: Mapping[str, int], excluded: Any, title: str = ""
    ) -> None:
        """`kernels`: name -> address; `excluded`: dispatch keys excluded (native.below_keyset);
        `title`: what profilers call the Program's graph.
        """
        self._range = name_of_program(program, title)
        self.program = program
        self._tensors = {tensor.name: tensor for tensor in program.tensors}
        checked = {kernel.name for kernel in program.kernels if kernel.meta.get("checked")}
        self._kernels = {
            name: (_CHECKED_KERNEL_TYPE if name in checked else _KERNEL_TYPE)(address)
            for name, address in kernels.items()
        }
        self._operators = {
            (step.op, grad_mode_of(step)): operator_of(step)
            for step in program.steps
            if isinstance(step, Extern)
        }
        self._excluded = excluded

    def __repr__(self) -> str:
        return f"<compiled program {self.program.name}, in Python>"

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        return self.spend(list(args))

    def spend(self, args: list[Any]) -> tuple[Any, ...]:
        """A call with the items of a list, which it empties: inputs go after their last use."""
        program = self.program
        if len(args) != len(program.inputs):
            raise TypeError(
                f"{program.name} takes {len(program.inputs)} positional arguments, got {len(args)}"
            )
        for position, (name, arg) in enumerate(zip(program.inputs, args, strict=True)):
            if name in self._tensors and not isinstance(arg, torch.Tensor):
                raise TypeError(
                    f"{program.name}: argument {position} must be a tensor, not "
                    f"{type(arg).__name__}"
                )
        values = dict(zip(program.inputs, args, strict=True))
        unversioned = {name for name in program.mutated if values[name].is_inference()}
        if unversioned and not torch.is_inference_mode_enabled():
            raise RuntimeError(
                f"{program.name} mutates an inference tensor outside of inference mode; "
                f"give it a clone"
            )
        sizes = {symbol.name: _value(symbol, args[symbol.input]) for symbol in program.symbols}
        args.clear()
        with torch._C._ExcludeDispatchKeyGuard(self._excluded), range_of(self._range):
            for step in program.steps:
                with range_of(name_of_step(step)):
                    self._run(step, values, sizes)
        for name, count in program.counted_writes():
            for _ in range(0 if name in unversioned else count):
                torch.autograd.graph.increment_version(values[name])
        return tuple(
            evaluate(out.text, sizes)
            if isinstance(out, SizeExpr)
            else None
            if out is None
            else values[out]
            for out in program.outputs
        )

    def _run(self, step: Step, values: dict[str, Any], sizes: dict[str, int]) -> None:
        if isinstance(step, Launch):
            buffers = (ctypes.c_void_p * len(step.buffers))(
                *(values[name].data_ptr() for name in step.buffers)
            )
            ints = (ctypes.c_int64 * len(step.ints))(*(evaluate(dim, sizes) for dim in step.ints))
            if self._kernels[step.kernel](buffers, ints):
                raise IndexError(out_of_bounds(step.kernel))
        elif isinstance(step, Extern):
            self._call(step, values, sizes)
        elif isinstance(step, Reserve):
            increment = evaluate(step.increment, sizes)
            state = random_state.reserve(random_state.device_index(step.device), increment)
            sizes.update(zip(step.symbols, state, strict=True))
            values[step.name] = torch.tensor(state)
        elif isinstance(step, Free):
            values.pop(step.name, None)
        elif isinstance(step, Allocate):
            tensor = self._tensors[step.name]
            old = values.pop(step.reuse or "", None)
            if step.in_place:
                shape, stride = _ints(tensor.shape, sizes), _ints(tensor.stride, sizes)
                values[step.name] = view_of(old, old.dtype, shape, stride, 0)
                return
            values[step.name] = torch.empty_strided(
                _ints(tensor.shape, sizes),
                _ints(tensor.stride, sizes),
                dtype=getattr(torch, tensor.dtype),
                device=tensor.device,
            )
        elif isinstance(step, View):
            tensor = self._tensors[step.name]
            shape, stride = _ints(tensor.shape, sizes), _ints(tensor.stride, sizes)
            dtype = getattr(torch, tensor.dtype)
            offset = evaluate(difference(tensor.offset, self._tensors[step.base].offset), sizes)
            values[step.name] = view_of(values[step.base], dtype, shape, stride, offset)

    def _call(self, step: Extern, values: dict[str, Any], sizes: dict[str, int]) -> None:
        def bind(arg: Ref | SizeExpr | Float) -> Any:
            if isinstance(arg, Ref):
                return values[arg.name]
            number = evaluate(arg.text, sizes)
            return float_of(number) if isinstance(arg, Float) else number

        args = map_argument(step.args, bind)
        kwargs = {key: map_argument(value, bind) for key, value in step.kwargs.items()}
        kwargs.update((key, values[name]) for key, name in step.out)
        try:
            results = self._operators[step.op, grad_mode_of(step)](*args, **kwargs)
        except Exception as error:
            error.add_note(f"while {self.program.name} called {step.op}")
            raise
        if not isinstance(results, (tuple, list)):
            results = (results,)
        if step.outputs and len(step.outputs) != len(results):
            raise ValueError(f"{step.op}: expected {len(step.outputs)} results, got {len(results)}")
        for name, result in zip(step.outputs, results, strict=False):
            if name is not None:
                values[name] = result


def _value(symbol: Symbol, arg: Any) -> int:
    """What a symbol stands for in a call; TypeError for a number of the other kind."""
    if symbol.is_float:
        return bits_of(arg)
    if symbol.is_element:
        return arg[symbol.dim].item()
    return operator.index(arg) if symbol.dim is None else arg.shape[symbol.dim]


def _ints(dims: tuple[Dim, ...], sizes: dict[str, int]) -> list[int]:
    return [evaluate(dim, sizes) for dim in dims]
