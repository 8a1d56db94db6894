"""The arguments of a launched kernel as those of its operator.

Tensors, ints and floats become arguments of the operator, constants a part of it. A view that the
kernel writes to, and what shares its memory, become windows on the tensor that they are views of:

    kernel[grid](x[0], x[1])
    ->  torch.ops.flambeau_kernel.kernel_0(x, [<two windows on x>], ...)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.reasons import GraphBreak
from flambeau_prims import sizes
from flambeau_prims.concrete_sizes import concrete
from flambeau_prims.fake import FakeTensor
from flambeau_prims.kernel_launches import (
    ConstantArgument,
    FloatArgument,
    NumberArgument,
    TensorArgument,
    WindowArgument,
)
from flambeau_prims.kernel_writes import python_function
from flambeau_prims.strides import is_dense

if TYPE_CHECKING:
    import inspect
    from collections.abc import Mapping

    from flambeau_capture.interpreter.machine import Machine
    from flambeau_prims.kernel_launches import Argument
    from flambeau_prims.spec import Spec

_CONSTANTS = (int, float, bool, str, type(None), torch.dtype)


class Operands:
    """The arguments of an operator, as they are collected from those of a launch, `given`."""

    def __init__(
        self,
        machine: Machine,
        kernel: str,
        parameters: Mapping[str, inspect.Parameter],
        given: dict[str, Any],
        written: set[str],
    ) -> None:
        self.machine, self.kernel, self.parameters = machine, kernel, parameters
        self.given, self.written = given, written
        self.tensors: list[Any] = []
        self.names: list[str] = []
        self.numbers: list[Any] = []
        self.floats: list[Any] = []
        self.bases = self._shared_memory()

    def call(self, operator: Any, grid: list[Any]) -> None:
        """Record the call of the operator."""
        if not self.tensors:
            raise self._break("is launched without a tensor")
        strides = [stride for tensor in self.tensors for stride in tensor.stride()]
        args = (*self.tensors, self.numbers, strides, *self.floats, grid)
        self.machine.tape.call_function(operator, args)

    def written_tensors(self, arguments: dict[str, Argument]) -> tuple[int, ...]:
        """The numbers of the operator's tensors that the kernel writes to."""
        written = (arguments.get(name) for name in self.written)
        return tuple(sorted({
            argument.number
            for argument in written
            if isinstance(argument, (TensorArgument, WindowArgument))
        }))  # fmt: skip

    def argument(self, name: str) -> Argument:
        """How the operator passes an argument of the launch."""
        parameter, value = self.parameters.get(name), self.given[name]
        if type(value).__name__ == "constexpr":
            value = value.value
        constant = parameter is None or _is_constexpr(parameter)
        if isinstance(value, torch.Tensor):
            if constant or type(value) is not FakeTensor:
                raise self._break(f"has a {type(value).__name__} as {name}")
            return self._tensor(name, value)
        if not constant and type(value) in (int, torch.SymInt):
            self.numbers.append(value)
            return NumberArgument(len(self.numbers) - 1)
        if not constant and type(value) in (float, torch.SymFloat):
            self.floats.append(value)
            return FloatArgument(len(self.floats) - 1)
        return ConstantArgument(self._constant(name, concrete(value)))

    def _break(self, detail: str) -> GraphBreak:
        return GraphBreak("triton-kernel", f"{self.kernel} {detail}")

    def _constant(self, name: str, value: Any) -> Any:
        """A value that the operator holds."""
        if type(value) is tuple:
            return tuple(self._constant(name, item) for item in value)
        known = type(value) in _CONSTANTS or type(value).__module__.startswith("triton.language")
        if not known and python_function(value) is None:
            raise self._break(f"has a {type(value).__name__} as {name}")
        source = self.machine.objects.source_of(value)
        if source is not None:
            self.machine.guard("IS", source, value)
        return value

    # Tensors

    def _tensor(self, name: str, value: FakeTensor) -> Argument:
        base = self.bases.get(value.storage_record)
        if base is None:
            if name in self.written and _overlaps(value.spec):
                raise self._break(f"writes to {name}, whose elements share memory")
            return TensorArgument(self._number(name, value))
        number = self._number(name, base)
        first = len(self.numbers)
        offset = value.storage_offset() - base.storage_offset()
        self.numbers += [*value.shape, *value.stride(), offset]
        return WindowArgument(number, first, value.ndim)

    def _number(self, name: str, tensor: FakeTensor) -> int:
        for number, known in enumerate(self.tensors):
            if known is tensor:
                return number
        self.tensors.append(tensor)
        self.names.append(name)
        return len(self.tensors) - 1

    def _shared_memory(self) -> dict[Any, FakeTensor]:
        """By storage, the tensor that windows are taken of."""
        groups: dict[Any, dict[int, FakeTensor]] = {}
        for value in self.given.values():
            if type(value) is FakeTensor:
                groups.setdefault(value.storage_record, {})[id(value)] = value
        bases = {}
        written = [self.given.get(name) for name in self.written]
        for storage in {v.storage_record for v in written if type(v) is FakeTensor}:
            group = list(groups[storage].values())
            if len(group) == 1 and group[0]._base is None:
                continue
            base = self._base_of(group)
            if base is not None:
                bases[storage] = base
            elif len(group) > 1:
                raise self._break(
                    "writes to memory that several arguments show, and no tensor shows all of it"
                )
        return bases

    def _base_of(self, group: list[FakeTensor]) -> FakeTensor | None:
        """A tensor without gaps whose memory holds all of these."""
        candidates = [*(view._base for view in group), *group]
        return next(
            (
                base
                for base in candidates
                if type(base) is FakeTensor
                and self.machine.tape.is_value(base)
                and all(view.dtype == base.dtype for view in group)
                and is_dense(base.spec)
                and all(_is_inside(view.spec, base.spec) for view in group)
            ),
            None,
        )


def _overlaps(spec: Spec) -> bool:
    """Whether a dim of several elements has the stride 0."""
    return any(
        sizes.known_eq(stride, 0) and not sizes.known_eq(size, 1)
        for size, stride in zip(spec.shape, spec.stride, strict=True)
    )


def _is_inside(spec: Spec, base: Spec) -> bool:
    """Whether a view shows no memory outside its base."""
    last: Any = spec.offset
    for size, stride in zip(spec.shape, spec.stride, strict=True):
        last = last + (size - 1) * stride
    return sizes.ge(spec.offset, base.offset) and sizes.lt(last, base.offset + base.numel)


def _is_constexpr(parameter: inspect.Parameter) -> bool:
    annotation = parameter.annotation
    name = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    return "constexpr" in name
