"""`python -m tools.series`: rewrite `prims/decompositions/special_tables.py`."""

from __future__ import annotations

from textwrap import fill
from typing import Any

import mpmath as mp

from tools.checks.command import ROOT
from tools.series.functions import FUNCTIONS

PAGE = ROOT / "packages/prims/src/flambeau_prims/decompositions/special_tables.py"
NODES = 64
HEAD = '''"""Chebyshev series of special functions: name -> (low, high, coefficients).

On [low, high], f(x) is the sum of coefficients[k] * T_k(t), t = (2 x - low - high) / (high - low).
The functions are those of tools/series/functions.py. `python -m tools.series` writes this file.
"""

from __future__ import annotations

# fmt: off
SERIES: dict[str, tuple[float, float, tuple[float, ...]]] = {
'''


def coefficients(function: Any, low: Any, high: Any) -> list[Any]:
    """The Chebyshev coefficients of a function, from its values at the zeros of T_64; those that
    double precision does not feel are left out.
    """
    angles = [mp.pi * (2 * j + 1) / (2 * NODES) for j in range(NODES)]
    values = [function((high - low) / 2 * mp.cos(a) + (high + low) / 2) for a in angles]
    found = [
        mp.fsum(value * mp.cos(k * a) for value, a in zip(values, angles, strict=True)) * 2 / NODES
        for k in range(NODES)
    ]
    found[0] /= 2
    largest = max(map(abs, found))
    while abs(found[-1]) < largest * mp.mpf(2) ** -56:
        found.pop()
    return found


def main() -> None:
    """Write the file."""
    lines = [HEAD]
    for name, (function, low, high) in FUNCTIONS.items():
        numbers = ", ".join(repr(float(number)) for number in coefficients(function, low, high))
        text = fill(numbers, 98, initial_indent=" " * 8, subsequent_indent=" " * 8)
        lines.append(f'    "{name}": ({float(low)!r}, {float(high)!r}, (\n{text},\n    )),\n')
    lines.append("}\n")
    PAGE.write_text("".join(lines))


if __name__ == "__main__":
    main()
