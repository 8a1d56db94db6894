"""Which sizes of an export may vary: `Dim`, and what the program made of it.

    batch = Dim("batch", max=64)
    export(f, (x, y), dynamic_shapes={"x": {0: batch}, "y": {0: 2 * batch, 1: Dim.AUTO}})

A named Dim is a promise of the caller that the graph serves every size from `min` to `max`; a
program that breaks it, because it compares or fixes the size, is an error that names its line. Dims
of one name are one symbol.
"""

from __future__ import annotations

import enum
import keyword
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from flambeau_capture.reasons import REASONS
from flambeau_capture.record import Break, CaptureError, DynamicDims
from flambeau_capture.sources import RootOfSize, TensorSize
from flambeau_prims import sizes
from flambeau_prims.size_floats import is_float_symbol

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from flambeau_capture.sources import Source
    from flambeau_prims.size_ranges import SizeGuard
    from flambeau_prims.sizes import Expr, Size, SizeEnv

_RESERVED = ("value", "min", "max", "abs", "float", "math")
"""Names that texts of conditions use themselves."""


class Hint(enum.Enum):
    """How a size is treated that has no name: see `Dim`."""

    AUTO = "AUTO"
    DYNAMIC = "DYNAMIC"
    STATIC = "STATIC"

    def __repr__(self) -> str:
        return f"Dim.{self.name}"


@dataclass(frozen=True, slots=True)
class Dim:
    """A size that may vary from `min` to `max` (None: no bound); equal Dims are equal sizes.

    Arithmetic makes derived sizes: `2*batch`, `batch + 1`. `min` is 2 unless said otherwise,
    because sizes of 0 and 1 behave differently (1 broadcasts); a smaller one is an error where the
    program depends on that.

    Without a name: `Dim.AUTO` varies unless the program fixes it, `Dim.DYNAMIC` must not be fixed
    to one value, `Dim.STATIC` (or None, or the size itself) is the size of the example.
    """

    name: str
    min: int = field(default=2, kw_only=True)
    max: int | None = field(default=None, kw_only=True)
    AUTO: ClassVar[Hint] = Hint.AUTO
    DYNAMIC: ClassVar[Hint] = Hint.DYNAMIC
    STATIC: ClassVar[Hint] = Hint.STATIC

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.isidentifier():
            raise ValueError(f"a Dim is named by an identifier, not {self.name!r}")
        if keyword.iskeyword(self.name) or self.name in _RESERVED or is_float_symbol(self.name):
            raise ValueError(f"{self.name!r} cannot name a Dim")
        if type(self.min) is not int or self.min < 0:
            raise ValueError(f"{self!r}: min must be an int of 0 or more")
        if self.max is not None and (type(self.max) is not int or self.max <= self.min):
            raise ValueError(f"{self!r}: max must be an int above min")

    def __mul__(self, other: int) -> DerivedDim:
        return DerivedDim(self, 1, 0) * other

    def __add__(self, other: int) -> DerivedDim:
        return DerivedDim(self, 1, 0) + other

    def __sub__(self, other: int) -> DerivedDim:
        return DerivedDim(self, 1, 0) + -other

    __rmul__, __radd__ = __mul__, __add__


@dataclass(frozen=True, slots=True)
class DerivedDim:
    """`scale*root + shift`, made by arithmetic on a Dim."""

    root: Dim
    scale: int
    shift: int

    def __post_init__(self) -> None:
        if type(self.scale) is not int or type(self.shift) is not int or self.scale < 1:
            raise ValueError("a Dim is multiplied by positive ints and shifted by ints")

    def __mul__(self, other: int) -> DerivedDim:
        return DerivedDim(self.root, self.scale * other, self.shift * other)

    def __add__(self, other: int) -> DerivedDim:
        return DerivedDim(self.root, self.scale, self.shift + other)

    def __sub__(self, other: int) -> DerivedDim:
        return self + -other

    __rmul__, __radd__ = __mul__, __add__

    def __str__(self) -> str:
        text = self.root.name if self.scale == 1 else f"{self.scale}*{self.root.name}"
        return (
            text if not self.shift else f"{text} {'+' if self.shift > 0 else '-'} {abs(self.shift)}"
        )

    def root_text(self, size: str) -> str:
        """The root as an expression over this size."""
        if self.shift:
            sign = "-" if self.shift > 0 else "+"
            size = f"{size} {sign} {abs(self.shift)}"
            if self.scale != 1:
                size = f"({size})"
        return size if self.scale == 1 else f"{size} // {self.scale}"

    def root_size(self, size: int) -> int | None:
        """The root's size where this one's is `size`; None where no int is."""
        root, rest = divmod(size - self.shift, self.scale)
        return None if rest or root < 0 else root


def checked_dim(dim: Any, size: int, path: str) -> Dim | DerivedDim | Hint | None:
    """The declared size, None if static; ValueError if the example contradicts it."""
    if dim is None or dim is Hint.STATIC:
        return None
    if type(dim) is int:
        if dim != size:
            raise ValueError(f"dynamic_shapes says {dim} of {path}, whose size is {size}")
        return None
    if dim is Hint.AUTO:
        return dim if size >= 2 else None
    if dim is Hint.DYNAMIC:
        if size < 2:
            raise ValueError(
                f"{path} is {dim!r}, and {size} in the example: export with a size of 2 or more"
            )
        return dim
    if not isinstance(dim, (Dim, DerivedDim)):
        raise TypeError(
            f"dynamic_shapes says {dim!r} of {path}; a Dim, Dim.AUTO, Dim.DYNAMIC, "
            f"Dim.STATIC, an int or None is meant"
        )
    root = dim if isinstance(dim, Dim) else dim.root
    value = size if isinstance(dim, Dim) else dim.root_size(size)
    if value is None:
        raise ValueError(f"{path} is {size} in the example, which is not {dim}")
    if value < root.min or (root.max is not None and value > root.max):
        of = f"{root.name} = {value}" if dim is not root else f"{value}"
        raise ValueError(f"{path} is {of} in the example, outside {root!r}")
    return dim


@dataclass(frozen=True, slots=True)
class DeclaredSize:
    """The source of a symbol: its declaration, and the first argument that has it."""

    dim: Dim | Hint
    path: str


@dataclass(frozen=True, slots=True)
class Declaration:
    """A size or int of the arguments that may vary: path, source, example, declaration."""

    path: str
    source: Source
    size: int
    said: Dim | DerivedDim | Hint


@dataclass(frozen=True, slots=True)
class DeclaredDims(DynamicDims):
    """The `dynamic_shapes` of a call: tensors by identity, ints by source; the rest is static."""

    tensors: dict[int, tuple[torch.Tensor, dict[int, Declaration]]] = field(default_factory=dict)
    ints: dict[Source, Declaration] = field(default_factory=dict)
    made: list[DeclaredSymbols] = field(default_factory=list)
    """The symbols of each capture that was made."""

    def declare(self, env: SizeEnv) -> DeclaredSymbols:
        """The symbols, made in the order in which the arguments mention them."""
        symbols = DeclaredSymbols(env, self)
        self.made.append(symbols)
        return symbols

    def is_dynamic(self, source: Source, dim: int = -1) -> bool:
        """Never: tensors' sizes are declared."""
        return False

    def has_changed(self, source: Source) -> bool:
        """Whether the number at `source` was declared."""
        return source in self.ints

    def has_changed_within(self, source: Source) -> bool:
        """Whether a number inside the container at `source` was declared."""
        return bool(self.ints) and any(
            said.text().startswith(f"{source.text()}[") for said in self.ints
        )

    def declarations(self) -> Iterator[Declaration]:
        """All of them."""
        for _, by_dim in self.tensors.values():
            yield from by_dim.values()
        yield from self.ints.values()


class DeclaredSymbols:
    """The symbols of one capture for what was declared."""

    def __init__(self, env: SizeEnv, dims: DeclaredDims) -> None:
        self.env = env
        self._dims = dims
        self._roots: dict[str, tuple[Dim, Expr, str]] = {}
        self._sizes: dict[int, Size] = {}
        self.sources: dict[str, DeclaredSize] = {}
        for declaration in dims.declarations():
            self._sizes[id(declaration)] = self._symbol(declaration)
        self.promised = frozenset(str(guard) for guard in env.guards)
        """The conditions that the declarations themselves make."""

    def sizes_of(self, tensor: torch.Tensor) -> dict[int, Expr] | None:
        """The symbolic sizes of a tensor by dimension; None for tensors that are no arguments."""
        found = self._dims.tensors.get(id(tensor))
        if found is None:
            return None
        return {dim: self.size(said) for dim, said in found[1].items()}  # type: ignore[misc]

    def int_at(self, source: Source) -> Expr | None:
        """The symbol of the int at `source`."""
        found = self._dims.ints.get(source)
        return None if found is None else self.size(found)  # type: ignore[return-value]

    def size(self, declaration: Declaration) -> Size:
        """The size that a declaration stands for."""
        return self._sizes[id(declaration)]

    def _symbol(self, declaration: Declaration) -> Size:
        said = declaration.said
        if isinstance(said, Hint):
            made = self.env.symbol(declaration.size, declaration.source)
            self.sources[str(made)] = DeclaredSize(said, declaration.path)
            return made
        derived = said if isinstance(said, DerivedDim) else DerivedDim(said, 1, 0)
        value = derived.root_size(declaration.size)
        assert value is not None
        return self._root(derived, value, declaration) * derived.scale + derived.shift

    def _root(self, derived: DerivedDim, value: int, declaration: Declaration) -> Expr:
        dim, path, source = derived.root, declaration.path, declaration.source
        found = self._roots.get(dim.name)
        if found is None:
            if isinstance(source, TensorSize) and (derived.scale, derived.shift) != (1, 0):
                source = RootOfSize(source.base, source.dim, derived.scale, derived.shift)
                path = derived.root_text(path)
            symbol = self.env.symbol(value, source, lower=dim.min, name=dim.name)
            self.sources[dim.name] = DeclaredSize(dim, path)
            if dim.max is not None:
                sizes.le(symbol, dim.max)
            found = self._roots[dim.name] = (dim, symbol, path)
        elif found[0] != dim:
            raise ValueError(f"dynamic_shapes has two Dims of one name: {found[0]!r} and {dim!r}")
        elif found[1].hint != value:
            raise ValueError(
                f"{dim.name} is {found[1].hint} at {found[2]} and {value} at {path}: equal "
                f"Dims are equal sizes"
            )
        return found[1]


# ---------------------------------------------------------------- what the program made of it


def check_promises(symbols: DeclaredSymbols) -> None:
    """CaptureError where the capture took a guard that a declared Dim does not allow."""
    problems = [
        problem
        for guard in symbols.env.guards
        if str(guard) not in symbols.promised and (problem := _problem(guard, symbols)) is not None
    ]
    if not problems:
        return
    id, _, where, hint = problems[0]
    text = "; ".join(dict.fromkeys(text for _, text, _, _ in problems))
    raise CaptureError(Break(id, f"{text}: {REASONS[id].explanation}", where, hint))


def _problem(guard: SizeGuard, symbols: DeclaredSymbols) -> tuple[str, str, str, str] | None:
    """(reason id, text, place, hint) of a guard that breaks what was declared."""
    sides = (guard.lhs, guard.rhs)
    names = sorted(
        {name for side in sides if not isinstance(side, (int, float)) for name in side.symbols()}
    )
    if not all(name in symbols.sources for name in names):
        return None  # a symbol that the program's data gave (an unbacked size)
    sources = [symbols.sources[name] for name in names]
    said = [source.dim for source in sources]
    if Hint.AUTO in said:
        return None
    at = f" at {guard.where}" if guard.where else ""
    texts = [
        source.path if isinstance(source.dim, Hint) else f"{name} ({source.path})"
        for name, source in zip(names, sources, strict=True)
    ]
    if guard.op == "==" and len(names) == 1 and isinstance(guard.rhs, int):
        value = symbols.env.symbols[names[0]].hint
        hint = "declare the size static or Dim.AUTO, or write the line so that it serves every size"
        return ("size-specialised", f"{texts[0]} was specialised to {value}{at}", guard.where, hint)
    if Hint.DYNAMIC in said:
        return None
    hint = "declare the Dims so that this always holds, or use Dim.AUTO"
    if len(names) == 1 and isinstance(guard.rhs, int) and str(guard.lhs) == names[0]:
        dim = said[0]
        assert isinstance(dim, Dim)
        hint = {
            "<=": f"declare Dim({dim.name!r}, max={guard.rhs})",
            "<": f"declare Dim({dim.name!r}, max={guard.rhs - 1})",
            ">=": f"declare Dim({dim.name!r}, min={guard.rhs})",
            ">": f"declare Dim({dim.name!r}, min={guard.rhs + 1})",
        }.get(guard.op, hint)
        if guard.op == "!=" and guard.rhs == dim.min:
            hint = f"declare Dim({dim.name!r}, min={dim.min + 1})"
    elif guard.op == "==" and len(names) == 2:
        hint = f"use one Dim for both, or a derived one: here {guard}"
    return (
        "size-relation",
        f"{guard} is required{at}, of {' and '.join(texts)}",
        guard.where,
        hint,
    )
