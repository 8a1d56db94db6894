"""Every scalar operator in every dtype it takes, as C++ against eager torch: random and special values; floats against float64."""

from __future__ import annotations

import itertools
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from flambeau_inductor.codegen.cpp.backend import write_source
from flambeau_inductor.codegen.cpp.printer import CppPrinter
from flambeau_inductor.ir import Compute, Kernel, Load, Store
from flambeau_inductor.scalar_ops import SCALAR_OPS
from flambeau_prims.primitives import PRIMS
from flambeau_prims.spec import Spec
from flambeau_runtime.build import cpp, isa

sys.path.insert(0, str(Path(__file__).parent))
from run_cpp import I0, K0, Library, axes, params

DTYPES = (
    torch.float32,
    torch.float64,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
)
HALVES = (torch.float16, torch.bfloat16)
SPECIAL = (
    0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 2.0, 3.0, -3.0, math.inf, -math.inf, math.nan, 1e-40, -1e-40, 1e-30,
    1e30, 88.0, -88.0, 104.0, -104.0, 127.5, -149.0, 8388609.0, 1e9, 1e-7, math.pi, 0.9999999, 1.0000001,
)  # fmt: skip

ULPS = {"lgamma": 64.0}
"""Largest error in units in the last place, where more than 4 (lgamma: near its zeros, as in eager)."""


def operators():
    """(name, operand dtype) for every operator but `where` and `cast`, and `float_of_bits`."""
    for name, op in SCALAR_OPS.items():
        if name in ("where", "cast", "float_of_bits"):
            continue
        for dtype in DTYPES:
            try:
                PRIMS[name].infer(*[Spec.of((2,), dtype=dtype)] * op.arity)
            except TypeError:
                continue
            yield name, dtype


CASES = list(operators())


def kernel_of(name: str, dtype: torch.dtype) -> Kernel:
    arity = SCALAR_OPS[name].arity
    result = torch.bool if SCALAR_OPS[name].result == "bool" else dtype
    loads = tuple(Load(f"v{n}", dtype, f"b{n}", I0) for n in range(arity))
    compute = Compute("v9", result, name, tuple(f"v{n}" for n in range(arity)))
    described = [(dtype, "read")] * arity + [(result, "write")]
    return Kernel(
        "cpu",
        params(*described),
        (K0,),
        axes((I0, K0)),
        (),
        (*loads, compute, Store(f"b{arity}", I0, "v9")),
    )


def cast_kernel(source: torch.dtype, to: torch.dtype) -> Kernel:
    body = (Load("v0", source, "b0", I0), Compute("v1", to, "cast", ("v0",)), Store("b1", I0, "v1"))
    return Kernel("cpu", params((source, "read"), (to, "write")), (K0,), axes((I0, K0)), (), body)


def short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@pytest.fixture(scope="module")
def library():
    kernels = {f"{name}_{short(dtype)}": kernel_of(name, dtype) for name, dtype in CASES}
    for source, to in itertools.product((*DTYPES, *HALVES), repeat=2):
        kernels[f"cast_{short(source)}_{short(to)}"] = cast_kernel(source, to)
    return Library(kernels)


def operands(dtype: torch.dtype, arity: int) -> list[torch.Tensor]:
    """Random values of several magnitudes, and all tuples of special values."""
    if dtype == torch.bool:
        columns = [torch.randint(0, 2, (999,)).bool() for _ in range(arity)]
        special = [False, True]
    elif dtype.is_floating_point:
        columns = [
            torch.cat([torch.randn(1001, dtype=dtype) * scale for scale in (1, 0.01, 30, 1000)])
            for _ in range(arity)
        ]
        special = list(SPECIAL)
    else:
        info = torch.iinfo(dtype)
        columns = [
            torch.cat(
                [
                    torch.randint(max(info.min, -9), 10, (555,)),
                    torch.randint(info.min, info.max, (556,)),
                ]
            )
            for _ in range(arity)
        ]
        special = [
            value
            for value in (0, 1, -1, 2, 3, -7, 63, info.min, info.max)
            if info.min <= value <= info.max
        ]
    tuples = list(itertools.product(special, repeat=arity))
    return [
        torch.cat([column.to(dtype), torch.tensor([t[n] for t in tuples], dtype=dtype)])
        for n, column in enumerate(columns)
    ]


# No vector form: libm's lgamma and fmod, and integer division, of which processors have none.
SCALAR_LOOPS = {"lgamma", "floor_divide", "trunc_divide", "fmod", "remainder", "pow"}


def test_every_other_loop_is_vectorised(tmp_path):
    """The compiler's own report names each loop it vectorised."""
    level = isa.detect()
    if level == "baseline":
        pytest.skip("this machine has no AVX2")
    kernels = [
        (kernel_of(name, dtype), f"{name}_{short(dtype)}")
        for name, dtype in CASES
        if name not in SCALAR_LOOPS
    ]
    casts = itertools.product((*DTYPES, *HALVES), repeat=2)
    kernels += [(cast_kernel(a, b), f"cast_{short(a)}_{short(b)}") for a, b in casts]
    source = tmp_path / "kernels.cpp"
    source.write_text(write_source(kernels))
    flags = [
        *cpp.BASE_FLAGS,
        f"-DGLIBC_MINOR={cpp.glibc_minor()}",
        *isa.compiler_flags(level),
        "-fopt-info-vec",
    ]
    report = subprocess.run(
        ["g++", *flags, str(source), "-o", str(tmp_path / "out.so")],
        capture_output=True,
        text=True,
        check=False,
    )
    vectorised = {
        int(line) for line in re.findall(r":(\d+):\d+: optimized: loop vectorized", report.stderr)
    }
    missed, name = [], ""
    for number, line in enumerate(source.read_text().splitlines(), 1):
        name = match[1] if (match := re.match(r"static \w+ (\w+)_part", line)) else name
        if "#pragma omp simd" in line and vectorised.isdisjoint(range(number, number + 8)):
            missed.append(name)
    # Never set, the loop becomes a memset; between rows of floats, a memcpy.
    assert set(missed) <= {"signbit_uint8", "cast_float16_float32", "cast_float32_float16"}


def test_every_operator_is_implemented():
    missing = [name for name in SCALAR_OPS if not callable(getattr(CppPrinter, name, None))]
    assert not missing


@pytest.mark.parametrize(
    ("name", "dtype"), CASES, ids=lambda case: str(case).removeprefix("torch.")
)
def test_operator(library, name, dtype):
    torch.manual_seed(0)
    arity = SCALAR_OPS[name].arity
    inputs = operands(dtype, arity)
    if (
        name in ("floor_divide", "trunc_divide", "fmod", "remainder")
        and not dtype.is_floating_point
    ):
        # Eager raises or traps here: division by zero, and the least integer by -1.
        fine = (inputs[1] != 0) & ~((inputs[1] == -1) & (inputs[0] == torch.iinfo(dtype).min))
        inputs = [column[fine].contiguous() for column in inputs]
    result = torch.empty(
        len(inputs[0]), dtype=torch.bool if SCALAR_OPS[name].result == "bool" else dtype
    )
    library.run(f"{name}_{short(dtype)}", [*inputs, result], [len(result)])
    eager = PRIMS[name].reference(*inputs)
    if not result.dtype.is_floating_point:
        assert torch.equal(result, eager)
        return
    exact = PRIMS[name].reference(*[column.double() for column in inputs]).to(torch.float64)
    compare(name, inputs, result, eager, exact)


def compare(name, inputs, result, eager, exact):
    """NaNs, infinities and zeros' signs as eager's; finite values within some ulps of the float64 value, or closer than eager."""
    dtype = result.dtype

    def show(wrong):
        rows = [
            (*[c[i].item() for c in inputs], result[i].item(), eager[i].item())
            for i in wrong.nonzero()[:5, 0].tolist()
        ]
        return f"{name} {dtype}: (operands, ours, eager) {rows}"

    wrong_class = (result.isnan() != eager.isnan()) | (result.isinf() != eager.isinf())
    rounded = exact.to(dtype)
    wrong_class &= (result.isnan() != rounded.isnan()) | (result.isinf() != rounded.isinf())
    assert not wrong_class.any(), show(wrong_class)
    finite = torch.isfinite(rounded) & torch.isfinite(result)
    unit = (
        torch.nextafter(rounded.abs(), torch.full_like(rounded, math.inf)) - rounded.abs()
    ).double()
    unit = unit.clamp(min=torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps)
    error, theirs = (result.double() - exact).abs() / unit, (eager.double() - exact).abs() / unit
    bad = finite & (error > ULPS.get(name, 4.0)) & (error > 1.01 * theirs)
    assert not bad.any(), f"{show(bad)} {error[bad].max().item():.1f} ulp"
    zero = (result == 0) & (eager == 0) & (exact == 0)
    wrong_sign = zero & (torch.signbit(result) != torch.signbit(eager))
    assert not wrong_sign.any(), show(wrong_sign)


@pytest.mark.parametrize("source", (*DTYPES, *HALVES), ids=short)
def test_cast(library, source):
    torch.manual_seed(0)
    for to in (*DTYPES, *HALVES):
        if source in HALVES:
            values = torch.arange(-32768, 32768, dtype=torch.int16).view(
                source
            )  # every half there is
        else:
            (values,) = operands(source, 1)
        if (source.is_floating_point and not to.is_floating_point) and to != torch.bool:
            # Beyond the target's range the conversion is undefined, in eager too.
            info = torch.iinfo(to)
            wide = values.double()
            values = values[
                torch.isfinite(wide) & (wide >= float(info.min)) & (wide < float(info.max))
            ].contiguous()
        result = torch.empty(len(values), dtype=to)
        library.run(f"cast_{short(source)}_{short(to)}", [values, result], [len(values)])
        torch.testing.assert_close(result, values.to(to), rtol=0, atol=0, equal_nan=True)
        if to.is_floating_point and source.is_floating_point:
            assert torch.equal(
                torch.signbit(result)[~result.isnan()], torch.signbit(values)[~result.isnan()]
            )
