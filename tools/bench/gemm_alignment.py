"""How much longer cuBLAS takes for sizes that are no multiples of 8: the constants of
`packages/autograd/src/flambeau_autograd/pad_products.py`.

    python -m tools.bench.gemm_alignment [bf16|f16|tf32]

A line a product and a dim along which elements lie side by side: microseconds with sizes that are
multiples of 64, and the ratios to it where the dim is an odd number, twice one, and four times one.
The last lines have an odd dim along which no elements lie side by side.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

PRODUCTS = ((8192, 50304, 768), (8192, 768, 50304), (2048, 2048, 2048), (512, 1024, 1024))
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "tf32": torch.float32}
DIMS = ("rows", "columns", "depth")


def microseconds(call: Callable[[], object]) -> float:
    """The median time of a call on the GPU."""
    from triton.testing import do_bench

    return 1e3 * float(do_bench(call, warmup=4, rep=12, return_mode="median"))


def product(sizes: tuple[int, ...], side_by_side: str, dtype: torch.dtype) -> float:
    """The time of a product whose operands have elements of the depth, or of rows and columns,
    side by side.
    """
    rows, columns, depth = sizes
    shapes = ((rows, depth), (columns, depth))
    if side_by_side != "depth":
        shapes = ((depth, rows), (depth, columns))
    left, right = (torch.randn(*shape, device="cuda").to(dtype) for shape in shapes)
    left, right = (left, right.t()) if side_by_side == "depth" else (left.t(), right)
    return microseconds(lambda: torch.mm(left, right))


def main() -> None:
    """Print the table."""
    name = sys.argv[1] if len(sys.argv) > 1 else "bf16"
    dtype = DTYPES[name]
    torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
    cases = [(dim, "depth" if dim == "depth" else "rows") for dim in DIMS]
    cases += [("columns", "depth"), ("rows", "depth"), ("depth", "rows")]
    for dim, side_by_side in cases:
        for sizes in PRODUCTS:
            whole = product(sizes, side_by_side, dtype)
            ratios = []
            for power in (1, 2, 4):
                changed = list(sizes)
                changed[DIMS.index(dim)] -= 64 - power
                ratios.append(product(tuple(changed), side_by_side, dtype) / whole)
            text = " ".join(f"{ratio:5.2f}" for ratio in ratios)
            print(f"{dim:8} by {side_by_side:6} {sizes!s:20} {whole:7.1f} us {text}", flush=True)


if __name__ == "__main__":
    main()
