"""A call of a product as data: what is multiplied, and what is done with the sums."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flambeau_inductor.nodes import TensorRef


@dataclass(frozen=True)
class Product:
    """A call as a product: its factors, what is added (or None), the dim of each factor that is
    summed over, for a convolution its stride, and for float8 factors their scales: of a tensor, or
    of rows and of lanes. `rough`: sums of float8 products may be as a GPU's units keep them.
    `bounds`: rows of the left factor up to each of these are multiplied by another right one.
    """

    name: str
    left: TensorRef
    right: TensorRef
    added: TensorRef | None
    depth: tuple[int, int]
    stride: tuple[int, ...] | None = None
    scales: tuple[TensorRef, ...] = ()
    rough: bool = False
    bounds: TensorRef | None = None

    @property
    def is_plain(self) -> bool:
        """Whether it is a product of matrices, or of batches of them, and nothing else."""
        return self.stride is None and self.bounds is None and not self.scales

    @property
    def factors(self) -> tuple[TensorRef, TensorRef]:
        """Both factors."""
        return self.left, self.right
