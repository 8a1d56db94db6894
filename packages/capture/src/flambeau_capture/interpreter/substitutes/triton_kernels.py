"""Launches of the program's Triton kernels, and operators that `torch.library.triton_op` makes.

    add_kernel[grid](x, y, out, n, BLOCK=128)
    ->  torch.ops.flambeau_kernel.add_kernel_0(x, y, out, [n], [grid])

The operator knows the kernel and its constants (`flambeau_prims.kernel_launches`). What the host
computes for a launch is interpreted: the grid, once for each configuration that Triton may choose,
and the values of `triton.heuristics`. Triton's tuner itself runs when the operator runs.

A call of a `triton_op` runs its function in the frame. If the program gave it a formula for
gradients, function and formula make an autograd.Function.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch
from torch.library import wrap_triton

from flambeau_capture.graphs.triton_operators import (
    autograd_function,
    definition_of,
    function_for,
)
from flambeau_capture.interpreter.substitute_registry import substitute_for
from flambeau_capture.interpreter.substitutes.triton_arguments import Operands
from flambeau_capture.reasons import GraphBreak
from flambeau_prims.concrete_sizes import concrete
from flambeau_prims.kernel_launches import KernelLaunch, launch_operator
from flambeau_prims.kernel_writes import python_function, written_parameters

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flambeau_capture.interpreter.machine import Machine
    from flambeau_capture.interpreter.protocols import Args, Kwargs

LAUNCHERS = ("triton.runtime.", "triton.compiler.")
"""Modules of Triton that build and launch kernels."""
_FOLLOWED = ("__getitem__", "__call__", "<lambda>")
"""Functions of these modules that are interpreted: `kernel[grid]`, and calls of functions of
constants (`triton.cdiv`).
"""
_TUNERS = frozenset({"Autotuner"})
_HEURISTICS = frozenset({"Heuristics"})
_KERNELS = frozenset({"JITFunction", "InterpretedFunction"})
_MOST_CHOICES = 256


def call_of_triton(machine: Machine, function: Any, module: str, args: Args, kwargs: Kwargs) -> Any:
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
        given.get(argument.name, argument.default_value) for argument in schema.arguments
    )
    made = autograd_function(
        definition._name, function, definition._setup_context_fn, definition._backward_fn
    )
    return machine.call(made.apply, positional, {})


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
        self.given: dict[str, Any] = dict(zip(self.names, args, strict=False)) | kwargs
        self.hooked = any(map(_runs_hooks, self.layers))

    def run(self) -> None:
        """Record the launch."""
        machine = self.machine
        self.check()
        source = machine.objects.source_of(self.kernel)
        if source is None:
            raise _break(f"{self.name} is made in the frame")
        machine.guard("IS", source, self.kernel)
        configurations = self.configurations()
        values = [self.values_for(chosen) for chosen in configurations]
        self.check_parameters(values)
        grid = [size for each in values for size in self.grid_for(each)]
        plain = len(values) == 1 and not self.hooked
        # A kernel without a choice is launched itself, with what was chosen.
        given = self.given | values[0] if plain else self.given
        positional = () if plain else self.names[: len(self.args)]
        named = tuple(given)[len(positional) :]
        written = self.written()
        operands = Operands(machine, self.name, self.parameters, given, written)
        arguments = {name: operands.argument(name) for name in (*positional, *named)}
        names = tuple(dict.fromkeys(n for each in configurations for n in each if n in self.names))
        launch = KernelLaunch(
            kernel=self.base if plain else self.kernel,
            positional=tuple(arguments[name] for name in positional),
            named=tuple((name, arguments[name]) for name in named),
            tensors=tuple(operands.names),
            written=operands.written_tensors(arguments),
            floats=len(operands.floats),
            choice_names=() if plain else names,
            choices=tuple(tuple(each.get(name) for name in names) for each in configurations),
            parameters=self.names if plain and _kind(self.base) == "JITFunction" else (),
            hooked=self.hooked,
        )
        operands.call(launch_operator(launch).mutating, grid)

    def check(self) -> None:
        """Refuse what a graph cannot hold."""
        if self.warmup:
            raise _break(f"{self.name} is warmed up")
        if self.grid is None:
            raise _break(f"{self.name} is launched without a grid")
        if any(getattr(layer, "pre_run_hooks", None) for layer in self.layers):
            raise _break(f"{self.name} has hooks that run on the host before a launch")
        if len(self.args) > len(self.names) or not self.kwargs.keys().isdisjoint(
            self.names[: len(self.args)]
        ):
            raise _break(f"{self.name} is launched with arguments that do not fit its parameters")

    def check_parameters(self, values: list[dict[str, Any]]) -> None:
        """Refuse a launch without an argument that the kernel requires: Triton raises."""
        for name, parameter in self.parameters.items():
            required = parameter.default is parameter.empty and name not in self.given
            if required and not all(name in each for each in values):
                raise _break(f"{self.name} is launched without {name}")

    # Configurations

    def configurations(self) -> list[dict[str, Any]]:
        """What each configuration of the tuner sets; one that sets nothing without a tuner."""
        tuners = [layer for layer in self.layers if _kind(layer) in _TUNERS]
        if not tuners:
            return [{}]
        if len(tuners) > 1:
            raise _break(f"{self.name} has several tuners")
        found: list[dict[str, Any]] = []
        for config in tuners[0].configs:
            chosen = config.all_kwargs()
            if chosen not in found:
                found.append(chosen)
        if len(found) > _MOST_CHOICES:
            raise _break(f"{self.name} has more than {_MOST_CHOICES} configurations")
        if any(name in self.given for chosen in found for name in chosen):
            raise _break(f"{self.name} is launched with a value that its tuner sets, too")
        return found

    def values_for(self, chosen: dict[str, Any]) -> dict[str, Any]:
        """What a configuration and the heuristics set; the heuristics are interpreted."""
        given = dict(self.given)
        values: dict[str, Any] = {}
        for layer in self.layers:
            if _kind(layer) in _TUNERS:
                given |= chosen
                values |= chosen
            elif _kind(layer) in _HEURISTICS:
                for name, heuristic in layer.values.items():
                    value = concrete(self.machine.call(heuristic, (dict(given),), {}))
                    given[name] = values[name] = value
        return values

    def grid_for(self, values: dict[str, Any]) -> tuple[Any, ...]:
        """The three numbers of programs, with what a configuration sets."""
        grid = self.grid
        if callable(grid):
            meta = {
                name: parameter.default
                for name, parameter in self.parameters.items()
                if parameter.default is not parameter.empty
            }
            meta |= self.given | values
            arguments = {name: meta[name] for name in self.names if name in meta}
            grid = self.machine.call(grid, (arguments,), {})
        if not isinstance(grid, (tuple, list)):
            raise _break(f"the grid of {self.name} is a {type(grid).__name__}, not a tuple")
        sizes = tuple(grid)
        if not 1 <= len(sizes) <= 3 or any(type(n) not in (int, torch.SymInt) for n in sizes):
            raise _break(f"the grid of {self.name} is not a tuple of one to three ints")
        return (*sizes, 1, 1)[:3]

    def written(self) -> set[str]:
        """The parameters that the kernel, or a hook of its tuner, writes to."""
        found = written_parameters(self.function)
        if found is None or self.hooked:
            return set(self.names)
        names = set(found)
        for layer in self.layers:
            names.update(getattr(layer, "reset_to_zero", ()), getattr(layer, "restore_value", ()))
        return names


def _layers(kernel: Any) -> Iterator[Any]:
    """The tuner, the heuristics and the kernel, outermost first."""
    while _kind(kernel) in _TUNERS | _HEURISTICS:
        yield kernel
        kernel = kernel.fn
    yield kernel


def _runs_hooks(layer: Any) -> bool:
    """Whether functions of the program run before or after a launch."""
    return bool(
        getattr(layer, "user_defined_pre_hook", False)
        or getattr(layer, "user_defined_post_hook", False)
        or any(config.pre_hook is not None for config in getattr(layer, "configs", ()))
    )
