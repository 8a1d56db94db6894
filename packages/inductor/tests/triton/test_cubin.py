"""Every kernel compiles to a cubin for sm_90, through Triton's compiler with an explicit target; no
GPU needed.
"""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

from cases import Case, all_cases, tiling_of

from flambeau_inductor.codegen.triton.backend import meta, write
from flambeau_runtime.build.triton import Cubin, build_cubin

CHOSEN = {
    case.name: case
    for case in all_cases()
    if case.name.endswith(("torch.float32", "5x7", "5x50", "257x3"))
    or "-" not in case.name
    or case.name.startswith(
        ("softmax", "transposed", "columns", "column_scan", "scan-sum-torch.int64", "matmul")
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
