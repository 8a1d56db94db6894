"""Time cuBLAS on matrices whose rows begin at odd addresses: the constants of
`packages/autograd/src/flambeau_autograd/pad_products.py`.

    python -m tools.bench.gemm_alignment [bf16|f16|tf32]

Each line: m, n, k; microseconds with all rows aligned and odd sizes; then with only the first
operand, only the second and only the result at odd pitches, and with all three; the bias added by
the library, and the same product with even sizes.
"""

from __future__ import annotations

import sys

import torch

SIZES = (
    (8192, 50257, 768), (8192, 768, 50257), (50257, 768, 8192), (2048, 30522, 768),
    (1024, 1023, 1023), (4096, 4097, 4097), (512, 1001, 2048), (65536, 129, 129),
)  # fmt: skip
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "tf32": torch.float32}


def matrix(rows: int, columns: int, dtype: torch.dtype, aligned: bool) -> torch.Tensor:
    """A row-major matrix; its rows begin at multiples of 128 bytes, or right behind each other."""
    pitch = -(-columns // 64) * 64 if aligned else columns
    return torch.randn(rows, pitch, device="cuda").to(dtype)[:, :columns]


def microseconds(call: object) -> float:
    """The median time of a call on the GPU."""
    from triton.testing import do_bench

    return 1e3 * do_bench(call, warmup=5, rep=20, return_mode="median")


def main() -> None:
    """Print the table."""
    name = sys.argv[1] if len(sys.argv) > 1 else "bf16"
    dtype = DTYPES[name]
    torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
    for m, n, k in SIZES:
        line = []
        for odd in ((), (0,), (1,), (2,), (0, 1, 2)):
            a, b, c = (
                matrix(*shape, dtype, index not in odd)
                for index, shape in enumerate(((m, k), (n, k), (m, n)))
            )
            line.append(microseconds(lambda a=a, b=b, c=c: torch.mm(a, b.t(), out=c)))
        bias = torch.randn(n, device="cuda").to(dtype)
        line.append(microseconds(lambda a=a, b=b, bias=bias: torch.addmm(bias, a, b.t())))
        m8, n8, k8 = (-(-size // 64) * 64 for size in (m, n, k))
        a, b, c = (matrix(*shape, dtype, True) for shape in ((m8, k8), (n8, k8), (m8, n8)))
        line.append(microseconds(lambda a=a, b=b, c=c: torch.mm(a, b.t(), out=c)))
        print(f"{m:6} {n:6} {k:6} " + " ".join(f"{time:8.1f}" for time in line), flush=True)


if __name__ == "__main__":
    main()
