"""Every kernel compiles to a cubin for sm_90, through Triton's compiler with an explicit target; no
GPU needed.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

from cases import Case, all_cases, tiling_of

from flambeau_inductor import compile_graph
from flambeau_inductor.codegen.triton.backend import TritonBackend, meta, write
from flambeau_inductor.ir import ScheduledKernel
from flambeau_inductor.options import InductorOptions
from flambeau_prims.builder import Builder
from flambeau_prims.graph import Graph, Value
from flambeau_prims.sizes import SizeEnv
from flambeau_prims.spec import Spec
from flambeau_runtime.build.triton import Cubin, build_cubin, build_job
from flambeau_runtime.build.triton_compiler import compile_kernel
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
            "repeats",
            "ragged-gapped-50257",
            "ragged-bounded",
        )
    )
    or (case.name.startswith(("scan-max", "scan-logaddexp", "sort-")) and "5x" in case.name)
}


@pytest.mark.parametrize("case", CHOSEN.values(), ids=CHOSEN.keys())
def test_compiles_for_sm_90(case: Case, tmp_path: Path) -> None:
    tiling = tiling_of(case)
    source = write(case.kernel, "generated", tiling)
    kernel = Kernel("generated", 0, meta(case.kernel, tiling))
    built = cubin(source, kernel, 90, RuntimeOptions(cache_dir=tmp_path), aligned=True)
    assert built.image.startswith(b"\x7fELF")
    assert Cubin.from_bytes(built.to_bytes()) == built
    assert not built.spills, built.stack


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


SUM_OF_PRODUCT = """
import triton
import triton.language as tl


@triton.jit
def sums(source, result, XBLOCK: tl.constexpr):
    lanes = tl.arange(0, XBLOCK)
    a = tl.load(source + lanes)
    tl.store(result + lanes, a * a + tl.load(source + XBLOCK + lanes))
"""


def test_products_are_contracted_unless_numerics_are_strict() -> None:
    meta = {
        "signature": {"source": "*fp32", "result": "*fp32"},
        "constants": {"XBLOCK": 128},
        "num_warps": 4,
        "num_stages": 2,
    }
    fast = build_cubin(SUM_OF_PRODUCT, "sums", meta, 90)
    strict = build_cubin(SUM_OF_PRODUCT, "sums", meta | {"fp_fusion": False}, 90)
    assert fast.image != strict.image
    case = next(iter(CHOSEN.values()))
    names = tuple(f"x{number}" for number in range(len(case.buffers)))
    launch = ScheduledKernel(case.kernel, names, case.ints, "cuda:0", case.tiling)
    for numerics, contracts in (("fast", True), ("strict", False)):
        options = InductorOptions(numerics=numerics)
        emitted = TritonBackend().emit([launch], options)
        assert emitted.kernels[0].meta.get("fp_fusion", True) is contracts


@pytest.mark.parametrize(
    ("dtype", "unit"), [(torch.float32, "f32"), (torch.float64, "f64")], ids=str
)
def test_products_that_cancel_are_rounded(
    dtype: torch.dtype, unit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not with the library's product, which takes subnormal numbers for 0."""
    import triton

    compiled: list[triton.compiler.CompiledKernel] = []
    compile_source = triton.compile

    def compile_and_keep(*args: object, **kwargs: object) -> object:
        compiled.append(compile_source(*args, **kwargs))
        return compiled[-1]

    monkeypatch.setattr(triton, "compile", compile_and_keep)
    specs = [Spec.of((8, 64), dtype=dtype, device=torch.device("cuda:0"))] * 3
    for rounds in (False, True):
        graph = Graph([Value(name, spec) for name, spec in zip("xyz", specs, strict=True)])
        b = Builder(graph.nodes, "xyz")
        x, y, z = graph.inputs
        product = b.mul(x, y)
        most = b.spread(b.amax(product, (1,)), (1,), (8, 64))
        graph.outputs = [b.sub(product, most if rounds else z)]
        program = compile_graph(graph, InductorOptions())
        (kernel,) = program.kernels
        text = program.sources[kernel.source].text
        compile_kernel(build_job(text, kernel.name, kernel.meta, 90))
        instructions = compiled[-1].asm["ptx"].split()
        assert (f"mul.rn.{unit}" in instructions) is rounds
        assert (f"fma.rn.{unit}" in instructions) is not rounds


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


@pytest.mark.parametrize("hint", [3, 16, 400])
def test_sums_over_a_symbolic_axis_and_one_that_tiles_divide(hint: int) -> None:
    """As in the backward of a layer norm, the rows of a batch whose size changes."""
    env = SizeEnv()
    spec = Spec.of((env.symbol(hint, "x"), 32, 64), device=torch.device("cuda:0"))
    graph = Graph([Value("x", spec), Value("y", spec)])
    b = Builder(graph.nodes, "xy")
    x, y = graph.inputs
    graph.outputs = [b.sum(b.mul(x, y), (0, 1)), b.sum(x, (0, 1))]
    program = compile_graph(graph, InductorOptions())
    for kernel in program.kernels:
        text = program.sources[kernel.source].text
        assert build_cubin(text, kernel.name, kernel.meta, 90).image.startswith(b"\x7fELF")


def test_constants_beyond_an_integer_dtype_wrap_around() -> None:
    """As eager's do: `x.clamp(-100, 100)` of uint8, whose lower bound is 156."""
    graph = Graph([Value("x", Spec.of((64,), dtype=torch.uint8, device=torch.device("cuda:0")))])
    b = Builder(graph.nodes, "x")
    (x,) = graph.inputs
    graph.outputs = [b.minimum(b.maximum(x, -100), 100), b.add(x, -3), b.where(b.lt(x, 9), -1, x)]
    program = compile_graph(graph, InductorOptions(debug_checks=True))
    for kernel in program.kernels:
        text = program.sources[kernel.source].text
        assert "156" in text
        assert build_cubin(text, kernel.name, kernel.meta, 90).image.startswith(b"\x7fELF")


def test_integers_wrap_in_kernels_that_check_indices() -> None:
    """Triton asserts that they do not, wherever assertions are built."""
    cuda = torch.device("cuda:0")
    x = Value("x", Spec.of((64,), dtype=torch.int8, device=cuda))
    i = Value("i", Spec.of((64,), dtype=torch.int64, device=cuda))
    graph = Graph([x, i])
    b = Builder(graph.nodes, "xi")
    graph.outputs = [b.add(b.mul(b.gather(x, 0, i), 7), 100)]
    program = compile_graph(graph, InductorOptions(debug_checks=True))
    checked = [kernel for kernel in program.kernels if kernel.meta["debug"]]
    assert checked
    for kernel in checked:
        text = program.sources[kernel.source].text
        image = build_cubin(text, kernel.name, kernel.meta, 90).image
        assert b"index out of bounds" in image
        assert b"overflow" not in image
        sanitized = kernel.meta | {"sanitize_overflow": True}
        assert b"overflow" in build_cubin(text, kernel.name, sanitized, 90).image


NARROW_PRODUCT = """
import triton
import triton.language as tl


@triton.jit
def product(a, b, result, KBLOCK: tl.constexpr):
    rows, lanes = tl.arange(0, 16)[:, None], tl.program_id(0) * 16 + tl.arange(0, 16)[None, :]
    sums = tl.zeros([16, 16], tl.float32)
    for start in range(0, 2049, KBLOCK):
        k = start + tl.arange(0, KBLOCK)
        left = tl.load(a + 2049 * rows + k[None, :], (k < 2049)[None, :] & (rows < 8), other=0)
        right = tl.load(b + 2049 * lanes + k[:, None], (k < 2049)[:, None] & (lanes < 255), other=0)
        sums = tl.dot(left, right, sums)
    tl.store(result + 255 * rows + lanes, sums.to(tl.float16), (rows < 8) & (lanes < 255))
"""


def test_registers_are_not_saved_at_the_cost_of_the_stack(tmp_path: Path) -> None:
    """`ptxas` up to 13.0 gives a thread 80 registers, and every second warp a wrong address."""
    meta = {
        "signature": dict.fromkeys(("a", "b", "result"), "*fp16"),
        "constants": {"KBLOCK": 256},
        "num_warps": 2,
        "num_stages": 6,
    }
    alone = build_cubin(NARROW_PRODUCT, "product", meta, 90)
    kernel = Kernel("product", 0, meta)
    built = cubin(NARROW_PRODUCT, kernel, 90, RuntimeOptions(cache_dir=tmp_path), aligned=True)
    assert not built.spills
    assert built.registers > alone.registers or not alone.spills
