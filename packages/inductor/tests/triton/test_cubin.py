"""Every kernel compiles to a cubin for sm_90, through Triton's compiler with an explicit target; no
GPU needed.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("triton")

from cases import Case, all_cases, tiling_of

from flambeau_inductor.codegen.triton.backend import meta, write
from flambeau_runtime.build.triton import Cubin, build_cubin
from flambeau_runtime.cuda import cubin
from flambeau_runtime.options import RuntimeOptions
from flambeau_runtime.program import Kernel

CHOSEN = {
    case.name: case
    for case in all_cases()
    if case.name.endswith(("torch.float32", "5x7", "5x50", "257x3"))
    or "-" not in case.name
    or case.name.startswith(
        (
            "softmax",
            "transposed",
            "columns",
            "shifted-37",
            "float8-torch.float32",
            "column_scan",
            "scan-sum-torch.int64",
            "matmul",
            "row_shares",
            "row_tiles",
        )
    )
    or (case.name.startswith(("scan-max", "scan-logaddexp", "sort-")) and "5x" in case.name)
}


@pytest.mark.parametrize("case", CHOSEN.values(), ids=CHOSEN.keys())
def test_compiles_for_sm_90(case: Case) -> None:
    tiling = tiling_of(case)
    source = write(case.kernel, "generated", tiling)
    cubin = build_cubin(source, "generated", meta(case.kernel, tiling), 90)
    assert cubin.image.startswith(b"\x7fELF")
    assert Cubin.from_bytes(cubin.to_bytes()) == cubin
    assert not cubin.spills, cubin.stack


SPILLING = """
import triton
import triton.language as tl


@triton.jit
def sums(source, result, XBLOCK: tl.constexpr):
    lanes = tl.arange(0, XBLOCK)
    a = tl.load(source + lanes)
    b = tl.load(source + XBLOCK + lanes * 3)
    c = tl.load(source + 9 * XBLOCK + lanes * 5)
    d = a * tl.sum(b) + b * tl.sum(c) + c * tl.sum(a)
    tl.store(result + lanes, d * tl.sum(d) + a * b * c)
"""


@pytest.mark.parametrize("most", [1, 8])
def test_a_kernel_that_spills_is_built_with_more_warps(tmp_path: Path, most: int) -> None:
    meta = {
        "signature": {"source": "*fp32", "result": "*fp32"},
        "constants": {"XBLOCK": 8192},
        "num_warps": 1,
        "num_stages": 2,
        "most_warps": most,
    }
    options = RuntimeOptions(cache_dir=tmp_path)
    build = partial(cubin, SPILLING, Kernel("sums", 0, meta), 90, options)
    built = build(aligned=True)
    assert (built.warps, built.spills) == ((1, True) if most == 1 else (4, False))
    assert 0 < built.registers <= 255
    assert build(aligned=True) == built
    assert build(aligned=False, warps=2).warps == 2
