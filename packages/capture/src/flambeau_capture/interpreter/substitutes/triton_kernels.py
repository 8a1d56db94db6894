"""Launches of the program's Triton kernels, and operators made of them by `torch.library.triton_op`.

    add_kernel[grid](x, y, out, n, BLOCK=128)
    ->  torch.ops.flambeau_kernel.add_kernel_0(x, y, out, [n], [grid])

The operator knows the kernel and its constants (`flambeau_prims.kernel_launches`). What the host
computes for a launch is interpreted: the grid, once for each configuration that Triton may choose,
and the values of `triton.heuristics`. Triton's tuner itself runs when the operator runs.

Tensors that share memory with one that the kernel writes to become windows on that memory:

    kernel[grid](x[0], x[1])
    ->  flat = x.as_strided(...); torch.ops.flambeau_kernel.kernel_0(flat, [<two windows>], [grid])

A call of a `triton_op` runs its function in the frame. If the program gave it a formula for
gradients, function and formula make an autograd.Function.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.library import wrap_triton

from flambeau_capture.graphs.triton_operators import (
    autograd_function,
    definition_of,
    function_for,
)
from flambeau_capture.interpreter.substitute_registry import substitute_for
from flambeau_capture.reasons import GraphBreak
from flambeau_prims import sizes
from flambeau_prims.concrete_sizes import concrete
from flambeau_prims.fake import FakeTensor
from flambeau_prims.kernel_launches import (
    ConstantArgument,
    FloatArgument,
    KernelLaunch,
    NumberArgument,
    TensorArgument,
    WindowArgument,
    launch_operator,
)
from flambeau_prims.kernel_writes import python_function, written_parameters
from flambeau_prims.strides import is_dense

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flambeau_capture.interpreter.machine import Machine
    from flambeau_capture.interpreter.protocols import Args, Kwargs
    from flambeau_prims.kernel_launches import Argument

LAUNCHERS = ("triton.runtime.", "triton.compiler.")
"""Modules of Triton that build and launch kernels."""
_FOLLOWED = ("__getitem__", "__call__", "<lambda>")
"""Functions of these modules that are interpreted: `kernel[grid]`, and calls of functions of
constants (`triton.cdiv`).
"""
_TUNERS = frozenset({"Autotuner"})
_HEURISTICS = frozenset({"Heuristics"})
_KERNELS = frozenset({"JITFunction", "InterpretedFunction"})
_CONSTANTS = (bool, str, type(None), torch.dtype)
_MOST_CHOICES = 256


def call_of_triton(
    machine: Machine, function: Any, module: str, args: Args, kwargs: Kwargs
) -> Any:
    """A Python function of Triton; NotImplemented has it interpreted."""
    if not module.startswith(LAUNCHERS) or function.__name__ in _FOLLOWED:
        return NotImplemented
    if function.__name__ == "run" and args and _kind(args[0]) in _TUNERS | _HEURISTICS | _KERNELS:
        return _Launch(machine, args[0], args[1:], dict(kwargs)).run()
    raise _break(f"call of {module}.{function.__qualname__}")


def _break(detail: str) -> GraphBreak:
    return GraphBreak("triton-kernel", detail)


def _kind(kernel: Any) -> str:
    return type(kernel).__name__


@substitute_for(wrap_triton)
def _wrap_triton(machine: Machine, args: Args, kwargs: Kwargs) -> Any:
    """The kernel itself, whose launches are captured anyway."""
    kernel = inspect.signature(wrap_triton).bind(*args, **kwargs).args[0]
    if _kind(kernel) not in _TUNERS | _HEURISTICS | _KERNELS:
        wrap_triton(kernel)  # for its error
        raise _break(f"wrap_triton of a {_kind(kernel)}")
    return kernel


def call_of_operator(machine: Machine, operator: Any, args: Args, kwargs: Kwargs) -> Any:
    """A call of a triton_op; NotImplemented for other operators."""
    definition = definition_of(operator)
    if definition is None:
        return NotImplemented
    tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
    devices = {tensor.device.type for tensor in tensors if tensor.ndim} or {"cpu"}
    function = function_for(definition, next(iter(devices))) if len(devices) == 1 else None
    if function is None:
        raise _break(f"call of {definition._qualname} on several devices")
    if not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)):
        return machine.call(function, args, kwargs)
    if definition._backward_fn is None:
        detail = f"{definition._qualname} has no formula for gradients, and an input requires grad"
        raise _break(detail)
    schema = definition._opoverload._schema
    if any(argument.kwarg_only for argument in schema.arguments):
        raise _break(f"{definition._qualname} has keyword-only parameters and gradients")
    given = dict(zip((a.name for a in schema.arguments), args, strict=False)) | kwargs
    positional = tuple(
        given[a.name] if a.name in given else a.default_value for a in schema.arguments
    )
    made = autograd_function(
        definition._name, function, definition._setup_context_fn, definition._backward_fn
    )
    return machine.call(made.apply, positional, {})


@dataclass
class _Variant:
    """One way in which Triton may launch a kernel: the values of parameters, and the options."""

    chosen: dict[str, Any]
    """What a configuration of the tuner sets."""
    values: dict[str, Any]
    """What configurations and heuristics set, and the arguments of the launch."""


@dataclass
class _Operands:
    """The arguments of the operator, as they are collected."""

    tensors: list[Any] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    numbers: list[Any] = field(default_factory=list)
    floats: list[Any] = field(default_factory=list)
    windows: dict[Any, int] = field(default_factory=dict)
    """By storage, the number of the tensor that windows on it are taken of."""


class _Launch:
    """One launch of a kernel."""

    def __init__(self, machine: Machine, kernel: Any, args: Args, kwargs: Kwargs) -> None:
        self.machine, self.kernel, self.args = machine, kernel, args
        self.grid = kwargs.pop("grid", None)
        self.warmup = kwargs.pop("warmup", False)
        self.kwargs = kwargs
        self.layers = list(_layers(kernel))
        self.base = self.layers[-1]
        function = python_function(self.base)
        if _kind(self.base) not in _KERNELS or function is None:
            raise _break(f"launch of a {_kind(self.base)}")
        self.function = function
        self.name = function.__name__
        self.parameters = inspect.signature(function).parameters
        self.names = tuple(self.parameters)

    def run(self) -> None:
        """Record the launch."""
        machine = self.machine
        self.check()
        source = machine.objects.source_of(self.kernel)
        if source is None:
            raise _break(f"{self.name} is made in the frame")
        machine.guard("IS", source, self.kernel)
        variants = [self.variant(chosen) for chosen in self.configurations()]
        grid = [size for variant in variants for size in self.grid_of(variant)]
        operands = _Operands()
        written = self.written()
        given = self.given()
        shared = self.shared_storages(given, written)
        if len(variants) == 1:
            # Nothing is left to choose: the kernel itself, with what was chosen.
            kernel, (variant,) = self.base, variants
            positional: list[str] = []
            named = [n for n in variant.values if n not in given] + list(given)
            given = {**variant.values, **given}
        else:
            kernel = self.kernel
            positional, named = list(self.names[: len(self.args)]), list(self.kwargs)
        arguments = {
            name: self.argument(operands, name, given[name], shared)
            for name in (*positional, *named)
        }
        if not operands.tensors:
            raise _break(f"{self.name} is launched without a tensor")
        slots = {
            arguments[name].number for name in written if isinstance(
                arguments.get(name), (TensorArgument, WindowArgument)
            )
        }
        choice_names = tuple(dict.fromkeys(n for v in variants for n in v.chosen if n in self.names))
        launch = KernelLaunch(
            kernel=kernel,
            positional=tuple(arguments[name] for name in positional),
            named=tuple((name, arguments[name]) for name in named),
            tensors=tuple(operands.names),
            written=tuple(sorted(slots)),
            floats=len(operands.floats),
            choice_names=choice_names if len(variants) > 1 else (),
            choices=tuple(
                tuple(v.values.get(n) for n in choice_names) for v in variants
            ) if len(variants) > 1 else ((),),
            parameters=self.names if len(variants) == 1 and _kind(self.base) == "JITFunction" else (),
        )
        operator = launch_operator(launch).mutating
        machine.tape.call_function(
            operator, (*operands.tensors, operands.numbers, *operands.floats, grid)
        )

    def check(self) -> None:
        """Refuse what a graph cannot hold."""
        if self.warmup:
            raise _break(f"{self.name} is warmed up")
        if self.grid is None:
            raise _break(f"{self.name} is launched without a grid")
        for layer in self.layers:
            if getattr(layer, "pre_run_hooks", None):
                raise _break(f"{self.name} has hooks that run on the host before a launch")
        if len(self.args) > len(self.names):
            raise _break(f"{self.name} is launched with more arguments than it has parameters")

    # Configurations

    def configurations(self) -> list[dict[str, Any]]:
        """What each configuration of the tuner sets; one that sets nothing without a tuner."""
        tuners = [layer for layer in self.layers if _kind(layer) in _TUNERS]
        if not tuners:
            return [{}]
        if len(tuners) > 1:
            raise _break(f"{self.name} has several tuners")
        found = []
        for config in tuners[0].configs:
            chosen = config.all_kwargs()
            if chosen not in found:
                found.append(chosen)
        if len(found) > _MOST_CHOICES:
            raise _break(f"{self.name} has more than {_MOST_CHOICES} configurations")
        if any(name in self.given() for chosen in found for name in chosen if name in self.names):
            raise _break(f"{self.name} is launched with a value that its tuner sets, too")
        if len(tuners[0].configs) == 1 and tuners[0].configs[0].pre_hook is not None:
            raise _break(f"{self.name} has a hook that runs on the host before a launch")
        return found

    def variant(self, chosen: dict[str, Any]) -> _Variant:
        """The values of all parameters for a configuration; heuristics are interpreted."""
        values = self.given()
        extra: dict[str, Any] = {}
        for layer in self.layers:
            if _kind(layer) in _TUNERS:
                values |= chosen
                extra |= chosen
            elif _kind(layer) in _HEURISTICS:
                for name, heuristic in layer.values.items():
                    value = concrete(self.machine.call(heuristic, (dict(values),), {}))
                    values[name] = extra[name] = value
        return _Variant(chosen, extra)

    def given(self) -> dict[str, Any]:
        """The arguments of the launch by name."""
        return dict(zip(self.names, self.args, strict=False)) | self.kwargs

    def grid_of(self, variant: _Variant) -> tuple[Any, Any, Any]:
        """The three numbers of programs for a configuration."""
        grid = self.grid
        if callable(grid):
            defaults = {
                name: parameter.default
                for name, parameter in self.parameters.items()
                if parameter.default is not parameter.empty
            }
            meta = defaults | self.given() | variant.values
            meta = {name: meta[name] for name in self.names if name in meta}
            grid = self.machine.call(grid, (meta,), {})
        if isinstance(grid, (int, torch.SymInt)):
            raise _break(f"the grid of {self.name} is a number, not a tuple")
        found = tuple(grid)
        if not 1 <= len(found) <= 3 or any(type(n) not in (int, torch.SymInt) for n in found):
            raise _break(f"the grid of {self.name} is not a tuple of one to three ints")
        return (*found, 1, 1)[:3]  # type: ignore[return-value]

    # Arguments

    def written(self) -> set[str]:
        """The parameters that the kernel, or a hook of its tuner, writes to."""
        found = written_parameters(self.function)
        if found is None or any(map(_runs_hooks, self.layers)):
            return set(self.names)
        for layer in self.layers:
            found |= {*getattr(layer, "reset_to_zero", ()), *getattr(layer, "restore_value", ())}
        return set(found)

    def shared_storages(self, given: dict[str, Any], written: set[str]) -> set[Any]:
        """Memories that a kernel writes to, and that several different tensors show."""
        tensors: dict[Any, dict[int, Any]] = {}
        for value in given.values():
            if isinstance(value, FakeTensor):
                tensors.setdefault(value.storage_record, {})[id(value)] = value
        touched = {
            given[name].storage_record
            for name in written
            if isinstance(given.get(name), FakeTensor)
        }
        return {storage for storage, group in tensors.items() if len(group) > 1} & touched

    def argument(self, operands: _Operands, name: str, value: Any, shared: set[Any]) -> Argument:
        """How the operator passes a value."""
        parameter = self.parameters.get(name)
        if isinstance(value, torch.Tensor):
            if type(value) is not FakeTensor:
                raise _break(f"{name} of {self.name} is a {type(value).__name__}")
            if parameter is None or _is_constexpr(parameter):
                raise _break(f"{name} of {self.name} is a tensor, but no argument of the kernel")
            return self.tensor(operands, name, value, shared)
        if parameter is None or _is_constexpr(parameter):
            return ConstantArgument(self.constant(name, concrete(value)))
        if type(value) in (int, torch.SymInt):
            operands.numbers.append(value)
            return NumberArgument(len(operands.numbers) - 1)
        if type(value) in (float, torch.SymFloat):
            operands.floats.append(value)
            return FloatArgument(len(operands.floats) - 1)
        return ConstantArgument(self.constant(name, concrete(value)))

    def constant(self, name: str, value: Any) -> Any:
        """A value that the operator holds."""
        if (
            type(value) in (int, float)
            or isinstance(value, _CONSTANTS)
            or type(value).__module__.startswith("triton.language")
            or python_function(value) is not None
        ):
            self.guard_identity(value)
            return value
        if type(value) is tuple:
            return tuple(self.constant(name, item) for item in value)
        raise _break(f"{name} of {self.name} is a {type(value).__name__}")

    def guard_identity(self, value: Any) -> None:
        source = self.machine.objects.source_of(value)
        if source is not None:
            self.machine.guard("IS", source, value)

    def tensor(
        self, operands: _Operands, name: str, value: FakeTensor, shared: set[Any]
    ) -> Argument:
        if value.storage_record in shared:
            return self.window(operands, name, value)
        for number, known in enumerate(operands.tensors):
            if known is value:
                return TensorArgument(number)
        operands.tensors.append(value)
        operands.names.append(name)
        return TensorArgument(len(operands.tensors) - 1)

    def window(self, operands: _Operands, name: str, value: FakeTensor) -> Argument:
        """A tensor as a window on the whole memory that it shows."""
        storage = value.storage_record
        given = [v for v in self.given().values() if isinstance(v, FakeTensor)]
        sharing = [v for v in given if v.storage_record is storage]
        number = operands.windows.get(storage)
        if number is None:
            candidates = [*sharing, *(v._base for v in sharing if v._base is not None)]
            base = next((v for v in candidates if _covers(v, sharing)), None)
            if base is None:
                raise _break(
                    f"{self.name} writes to memory that several arguments show, none of them whole"
                )
            if any(v.dtype != base.dtype for v in sharing):
                raise _break(f"{self.name} writes to memory that arguments show as several dtypes")
            number = operands.windows[storage] = len(operands.tensors)
            operands.tensors.append(base)
            operands.names.append(name)
        base = operands.tensors[number]
        first = len(operands.numbers)
        offset = value.storage_offset() - base.storage_offset()
        operands.numbers += [*value.shape, *value.stride(), offset]
        return WindowArgument(number, first, value.ndim)


def _covers(base: Any, sharing: list[Any]) -> bool:
    """Whether a tensor has no gaps, and holds every element of the others."""
    spec = base.spec
    if not is_dense(spec):
        return False
    for tensor in sharing:
        other = tensor.spec
        last: Any = other.offset
        for size, stride in zip(other.shape, other.stride, strict=True):
            last = last + (size - 1) * stride
        inside = sizes.ge(other.offset, spec.offset) and sizes.lt(last, spec.offset + spec.numel)
        if not inside:
            return False
    return True


def _layers(kernel: Any) -> Iterator[Any]:
    """The tuner, the heuristics and the kernel, outermost first."""
    for _ in range(8):
        yield kernel
        if _kind(kernel) not in _TUNERS | _HEURISTICS:
            return
        kernel = kernel.fn


def _runs_hooks(layer: Any) -> bool:
    """Whether functions of the program run before or after a launch."""
    return bool(
        getattr(layer, "user_defined_pre_hook", False)
        or getattr(layer, "user_defined_post_hook", False)
        or any(config.pre_hook is not None for config in getattr(layer, "configs", ()))
    )


def _is_constexpr(parameter: inspect.Parameter) -> bool:
    annotation = parameter.annotation
    name = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    return "constexpr" in name
