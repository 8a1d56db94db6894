"""Launches of the program's own Triton kernels as operators of torch.

    add_kernel[grid](x, y, out, n, BLOCK=128)
    ->  flambeau_kernel::add_kernel_0(Tensor x, Tensor y, Tensor(a2!) out, SymInt[] numbers,
                                      SymInt[] strides, SymInt[] grid) -> ()

Each distinct way of launching a kernel (which arguments are tensors, numbers or constants, which
are written, with which options) is one operator. Its functional form copies the tensors that the
kernel writes to, and returns the copies:

    flambeau_kernel::add_kernel_0_functional(Tensor x, Tensor y, Tensor out, ...) -> Tensor

Both are made once in a process. As in eager mode, autograd does not see a launch. The operator is
given the strides that the program has seen, since the kernel may be passed them as numbers: tensors
that a compiler laid out in another way are copied into these.
"""

from __future__ import annotations

import keyword
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from flambeau_prims import sizes
from flambeau_prims.fork_safety import fork_safe_lock
from flambeau_prims.rules.registry import rule

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch._ops import OpOverload

    from flambeau_prims.spec import Size, Spec

NAMESPACE = "flambeau_kernel"

_LIBRARY = torch.library.Library(NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]
_LOCK = fork_safe_lock()


@dataclass(frozen=True)
class TensorArgument:
    """Tensor `number` of the operator."""

    number: int


@dataclass(frozen=True)
class WindowArgument:
    """A strided window on tensor `number`: of its numbers, from `first` on, `ndim` sizes, as many
    strides, and the offset from where the tensor starts.
    """

    number: int
    first: int
    ndim: int


@dataclass(frozen=True)
class NumberArgument:
    """Item `number` of the operator's list of ints."""

    number: int


@dataclass(frozen=True)
class FloatArgument:
    """Float `number` of the operator."""

    number: int


@dataclass(frozen=True)
class ConstantArgument:
    """A value that is part of the operator."""

    value: Any


Argument: TypeAlias = (
    TensorArgument | WindowArgument | NumberArgument | FloatArgument | ConstantArgument
)


@dataclass(frozen=True)
class KernelLaunch:
    """What an operator launches, and with which arguments.

    `kernel` has Triton's method `run`. `positional` and `named` are its arguments in their order.
    `tensors` names the operator's tensors, `written` are the numbers of those that the kernel
    writes to. A kernel that Triton tunes has several `choices`, each the values of the parameters
    `choice_names`: the operator's `grid` has three ints for each.
    `parameters` are the names of the kernel's parameters if it is a plain one, for which the
    arguments and options are all that matters.
    """

    kernel: Any
    positional: tuple[Argument, ...]
    named: tuple[tuple[str, Argument], ...]
    tensors: tuple[str, ...]
    written: tuple[int, ...]
    floats: int = 0
    choice_names: tuple[str, ...] = ()
    choices: tuple[tuple[Any, ...], ...] = ((),)
    parameters: tuple[str, ...] = field(default=())
    hooked: bool = False
    """Whether functions of the program run before or after the launch."""

    @property
    def name(self) -> str:
        """The kernel's name."""
        function = self.kernel
        while not hasattr(function, "__name__"):
            function = function.fn
        return str(function.__name__)

    def run(
        self,
        tensors: list[Any],
        numbers: list[int],
        strides: list[int],
        floats: list[Any],
        grid: list[int],
    ) -> None:
        """Launch it on tensors in the given strides."""
        given, tensors, end = tensors, list(tensors), 0
        for number, tensor in enumerate(given):
            start, end = end, end + tensor.ndim
            wanted = strides[start:end]
            if not _same_strides(tensor.shape, tensor.stride(), wanted):
                tensors[number] = _copy(tensor, wanted)
        self._launch(tensors, numbers, floats, grid)
        for number in self.written:
            if tensors[number] is not given[number]:
                given[number].copy_(tensors[number])

    def _launch(
        self, tensors: list[Any], numbers: list[int], floats: list[Any], grid: list[int]
    ) -> None:

        def value(argument: Argument) -> Any:
            match argument:
                case TensorArgument(number):
                    return tensors[number]
                case WindowArgument(number, first, ndim):
                    base, end = tensors[number], first + 2 * ndim
                    shape, stride = numbers[first : first + ndim], numbers[first + ndim : end]
                    return base.as_strided(shape, stride, base.storage_offset() + numbers[end])
                case NumberArgument(number):
                    return numbers[number]
                case FloatArgument(number):
                    return floats[number]
                case ConstantArgument(constant):
                    return constant

        self.kernel.run(
            *map(value, self.positional),
            grid=self._grid(grid),
            warmup=False,
            **{name: value(argument) for name, argument in self.named},
        )

    def _grid(self, grid: list[int]) -> Any:
        if len(self.choices) == 1:
            return tuple(grid)
        grids = {choice: tuple(grid[3 * at : 3 * at + 3]) for at, choice in enumerate(self.choices)}
        return lambda meta: grids[tuple(_plain(meta[name]) for name in self.choice_names)]


def has_strides(specs: Sequence[Spec], strides: Sequence[Size]) -> bool:
    """Whether all tensors of a launch have the strides that the operator is given."""
    end = 0
    for spec in specs:
        start, end = end, end + spec.ndim
        if not _same_strides(spec.shape, spec.stride, strides[start:end]):
            return False
    return True


@dataclass(frozen=True)
class LaunchOperator:
    """The two forms of an operator that launches a kernel."""

    name: str
    launch: KernelLaunch
    mutating: OpOverload
    functional: OpOverload


_OPERATORS: dict[OpOverload, LaunchOperator] = {}
_BY_NAME: dict[str, LaunchOperator] = {}
_BY_LAUNCH: dict[Any, LaunchOperator] = {}
_COUNTS: dict[str, int] = {}


def launch_of(op: Any) -> LaunchOperator | None:
    """The launch behind an operator of this module, in either form; None for other operators."""
    return _OPERATORS.get(op)


def launch_named(name: str) -> LaunchOperator | None:
    """The launch behind a mutating operator, by its name in Programs."""
    return _BY_NAME.get(name)


def launch_operator(launch: KernelLaunch) -> LaunchOperator:
    """The operators for a launch."""
    key = _key(launch)
    with _LOCK:
        known = _BY_LAUNCH.get(key)
        if known is None:
            known = _BY_LAUNCH[key] = _define(launch)
    return known


def _key(launch: KernelLaunch) -> Any:
    """Equal for launches that are the same; 1, 1.0 and True differ."""
    bare = replace(launch, kernel=id(launch.kernel), positional=(), named=(), choices=())
    given = (*launch.positional, *(item for _, item in launch.named))
    names = tuple(name for name, _ in launch.named)
    return bare, names, tuple(map(_told_apart, given)), _told_apart(launch.choices)


def _told_apart(value: Any) -> Any:
    if isinstance(value, ConstantArgument):
        return ConstantArgument, _told_apart(value.value)
    if isinstance(value, tuple):
        return type(value), tuple(map(_told_apart, value))
    try:
        hash(value)
    except TypeError:
        return type(value), id(value)
    return type(value), repr(value) if isinstance(value, float) else value


def _define(launch: KernelLaunch) -> LaunchOperator:
    base = re.sub(r"\W", "_", launch.name)
    count = _COUNTS[base] = _COUNTS.get(base, -1) + 1
    name = f"{base}_{count}"
    names = [_parameter(tensor) for tensor in launch.tensors]
    rest = [
        "SymInt[] numbers_",
        "SymInt[] strides_",
        *(f"Scalar float{n}_" for n in range(launch.floats)),
    ]
    rest.append("SymInt[] grid_")
    written = set(launch.written)
    plain = [f"Tensor {name}" for name in names]
    marked = [
        f"Tensor(a{at}!) {name}" if at in written else plain[at] for at, name in enumerate(names)
    ]
    results = ", ".join(["Tensor"] * len(written))
    # A replay of a CUDA graph repeats what the device did.
    tags = (torch.Tag.cudagraph_unsafe,) if launch.hooked else ()
    mutating = _register(
        f"{name}({', '.join([*marked, *rest])}) -> ()", tags, _running(launch), lambda *args: None
    )
    functional = _register(
        f"{name}_functional({', '.join([*plain, *rest])}) -> ({results})",
        tags,
        _copying(launch, _running(launch)),
        _copying(launch, lambda *args: None),
    )
    rule(mutating)(lambda *args: None)
    rule(functional)(_copied_specs(launch))
    made = LaunchOperator(name, launch, mutating, functional)
    _OPERATORS[mutating] = _OPERATORS[functional] = made
    _BY_NAME[f"{NAMESPACE}.{name}.default"] = made
    return made


def _register(
    schema: str, tags: tuple[Any, ...], run: Callable[..., Any], run_on_meta: Callable[..., Any]
) -> OpOverload:
    name = schema.partition("(")[0]
    _LIBRARY.define(schema, tags=tags)  # type: ignore[no-untyped-call]
    _LIBRARY.impl(name, run, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    _LIBRARY.impl(name, run_on_meta, "Meta")  # type: ignore[no-untyped-call]
    for key in ("Autograd", "ADInplaceOrView"):
        _LIBRARY.impl(name, torch.library.fallthrough_kernel, key)  # type: ignore[no-untyped-call]
    made: OpOverload = getattr(getattr(torch.ops, NAMESPACE), name).default
    return made


def _parameter(name: str) -> str:
    """A name that a schema may use."""
    return f"{name}_" if keyword.iskeyword(name) or name in _RESERVED else name


_RESERVED = frozenset({"Tensor", "Scalar", "int", "float", "bool", "str", "complex", "self", "Any"})


def _running(launch: KernelLaunch) -> Callable[..., None]:
    count = len(launch.tensors)

    def run(*args: Any) -> None:
        numbers, strides, *floats, grid = args[count:]
        launch.run(list(args[:count]), list(numbers), list(strides), floats, list(grid))

    return run


def _copying(launch: KernelLaunch, run: Callable[..., None]) -> Callable[..., Any]:
    """`run` on copies of what it writes to, which are returned."""

    def copying(*args: Any) -> Any:
        values = list(args)
        for number in launch.written:
            values[number] = _copy(values[number], values[number].stride())
        run(*values)
        results = tuple(values[number] for number in launch.written)
        return results[0] if len(results) == 1 else results

    return copying


def _copy(tensor: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    """A copy with these strides, gaps included."""
    result = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device)
    return result.copy_(tensor)


def _same_strides(shape: Sequence[Size], one: Sequence[Size], other: Sequence[Size]) -> bool:
    """Whether two strides are known to place elements alike."""
    return all(
        sizes.known_eq(a, b) or sizes.known_eq(size, 1)
        for size, a, b in zip(shape, one, other, strict=True)
    )


def _copied_specs(launch: KernelLaunch) -> Callable[..., Any]:
    def specs(*args: Any) -> Any:
        results: tuple[Spec, ...] = tuple(
            args[number].replace(offset=0) for number in launch.written
        )
        return results[0] if len(results) == 1 else results

    return specs


def _plain(value: Any) -> Any:
    """The value of a constexpr."""
    return getattr(value, "value", value)
