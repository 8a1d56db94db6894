"""Where a program finds its symbolic sizes: among its int inputs, and in the shapes of its tensor
inputs.

x: f32[s0, 12*s1], s2  ->  symbols: s0 = x.shape[0], d1 = x.shape[1], s2 = input 1; and s1 is
written (d1//12)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flambeau_prims.graph import Value
from flambeau_prims.size_floats import is_float_symbol
from flambeau_prims.sizes import current
from flambeau_prims.symbols import symbol_reads
from flambeau_runtime.program import Symbol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flambeau_prims.sizes import Expr
    from flambeau_prims.spec import Spec


class SymbolSources:
    """The program's symbols, and `names`: the text that stands for each symbol of the graph."""

    def __init__(self, inputs: Sequence[Value | Expr]) -> None:
        self.symbols: list[Symbol] = []
        self.names: dict[str, str] = {}
        specs = [_current(item.spec) if isinstance(item, Value) else item for item in inputs]
        for name, read in symbol_reads(specs, derived=True).items():
            if (read.scale, read.shift) == (1, 0):
                self.names[name] = name
                is_float = read.dim is None and is_float_symbol(name)
                self.symbols.append(Symbol(name, read.input, read.dim, is_float))
                continue
            size = f"d{len(self.symbols)}"
            self.symbols.append(Symbol(size, read.input, read.dim))
            shifted = f"({size} - {read.shift})" if read.shift else size
            self.names[name] = shifted if read.scale == 1 else f"({shifted}//{read.scale})"


def _current(spec: Spec) -> Spec:
    """The spec with the equalities applied to its shape that were found since it was made."""
    if spec.env is None:
        return spec
    return spec.replace(shape=tuple(map(current, spec.shape)))
