"""The lines of one Triton function, and what `TritonOps` asks of whoever writes it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from flambeau_inductor.codegen.float8 import converts_float8, triton_conversion
from flambeau_inductor.codegen.triton.ops import HELPERS
from flambeau_inductor.codegen.triton.scans import HELPERS as SCAN_HELPERS

if TYPE_CHECKING:
    from collections.abc import Mapping

    import sympy
    import torch

    from flambeau_inductor.codegen.float8 import Float8
    from flambeau_inductor.codegen.triton.vector_bounds import VectorBound


class SourceWriter(ABC):
    """Lines, helper functions, and the dtypes of the parameters of one function."""

    bounds: Mapping[Any, VectorBound]
    """By mask and index, the masked loads that read whole vectors."""

    filled_loads: Mapping[Any, str]
    """By buffer, index and mask, what masked loads give for elements that do not exist."""

    def __init__(self, dtypes: Mapping[str, torch.dtype]) -> None:
        self.bounds = {}
        self.filled_loads = {}
        self.dtypes = dict(dtypes)
        self.lines: list[str] = []
        self.helpers: dict[str, str] = {}
        self.depth = 1

    def line(self, text: str) -> None:
        """One line at the current depth."""
        self.lines.append("    " * self.depth + text)

    def dtype_of(self, buffer: str) -> torch.dtype:
        """The dtype of a parameter."""
        return self.dtypes[buffer]

    def helper(self, name: str) -> str:
        """Have a helper function in the source; returns its name."""
        self.helpers[name] = HELPERS.get(name) or SCAN_HELPERS[name]
        return name

    def float8_helper(self, one: Float8, narrows: bool) -> str:
        """The same for a conversion of 8-bit floats."""
        name = f"{'to' if narrows else 'from'}_{one.name}"
        self.helpers[name] = triton_conversion(one, narrows, converts_float8())
        return name

    def whole_vectors(self, mask: str, bound: VectorBound) -> str:
        """The mask of vectors that a mask of elements touches."""
        raise ValueError(f"no vectors under {mask}: {bound}")

    def divides_row(self, a: str, b: str) -> bool:
        """Whether one value of a program divides a whole row."""
        return False

    def rounds_quotient(self, a: str, b: str) -> bool:
        """Whether what one value divides another to reaches memory in half precision only."""
        return False

    def rounds_product(self, a: str, b: str) -> bool:
        """Whether a product is rounded before a sum reads it (`rounded_products`)."""
        return False

    def scalar_pointer(self, buffer: str, index: sympy.Expr) -> str | None:
        """One address for what a program reads once; None where tiles of addresses do."""
        return None

    @abstractmethod
    def masks(self, index: sympy.Expr, dtype: torch.dtype) -> list[str]:
        """The masks that a load of a dtype needs at an index."""
