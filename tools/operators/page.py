"""docs/operators.md: the operators that stay calls of ATen, each with the reason, from the table of
`flambeau_prims.decompositions.extern`.
"""

from __future__ import annotations

from flambeau_prims.decompositions.extern import REASONS
from tools.checks.command import ROOT

PAGE = ROOT / "docs" / "operators.md"
_HEAD = """# Operators that stay calls of ATen

Other operators become kernels. These are called as they are, between kernels; `flambeau.explain`
names each such call and its reason. `python -m tools.operators --page` writes this page from the
table in `packages/prims/src/flambeau_prims/decompositions/extern.py`. `python -m tools.operators`
counts what becomes of each operator of PyTorch's operator tests.

An operator with a decomposition stays a call of ATen, too, where that does not cover the arguments
(long rows that are sorted, scatters that eager shares out to threads), and on tensors of complex
and of wide unsigned dtypes.

| reason | operators |
|---|---|
| linear algebra and Fourier transforms: a library's kernels | `linalg_*`, `fft_*` |
"""


def page() -> str:
    """The page's text."""
    rows = [
        f"| {reason} | {', '.join(f'`{name}`' for name in sorted(names))} |\n"
        for reason, names in REASONS.items()
    ]
    return _HEAD + "".join(rows)
