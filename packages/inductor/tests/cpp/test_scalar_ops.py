"""Every scalar operator in every dtype it takes, as C++ against eager torch: random and special
values; floats against float64.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
import run_cpp
import torch
from run_cpp import I0, K0, Library, axes, params

from flambeau_inductor.codegen.cpp.printer import CppPrinter
from flambeau_inductor.ir import Compute, Load, LoopKernel, Store
from flambeau_inductor.scalar_ops import SCALAR_OPS
from flambeau_prims.primitives import PRIMS
from flambeau_prims.spec import Spec
from flambeau_runtime.build import isa

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
HALF_DTYPES = (torch.float16, torch.bfloat16)
SPECIAL = (
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    -0.5,
    1.5,
    2.5,
    -2.5,
    2.0,
    3.0,
    -3.0,
    math.inf,
    -math.inf,
    math.nan,
    1e-40,
    -1e-40,
    1e-30,
    1e30,
    88.0,
    -88.0,
    104.0,
    -104.0,
    127.5,
    -149.0,
    8388609.0,
    1e9,
    1e-7,
    math.pi,
    0.9999999,
    1.0000001,
)

ULPS = {"lgamma": 64.0}
"""Largest error in units in the last place, where more than 4 (lgamma: near its zeros, as in
eager).
"""


def operators():
    """(name, operand dtype) for every operator that is a primitive, but `where` and `cast`."""
    for name, op in SCALAR_OPS.items():
        if name in ("where", "cast", "float_of_bits", "philox"):
            continue
        for dtype in DTYPES:
            try:
                PRIMS[name].infer(*[Spec.of((2,), dtype=dtype)] * op.arity)
            except TypeError:
                continue
            yield name, dtype


CASES = list(operators())


def kernel_of(name: str, dtype: torch.dtype) -> LoopKernel:
    arity = SCALAR_OPS[name].arity
    result = torch.bool if SCALAR_OPS[name].result == "bool" else dtype
    loads = tuple(Load(f"v{n}", dtype, f"b{n}", I0) for n in range(arity))
    compute = Compute("v9", result, name, tuple(f"v{n}" for n in range(arity)))
    described = [(dtype, "read")] * arity + [(result, "write")]
    return LoopKernel(
        "cpu",
        params(*described),
        (K0,),
        axes((I0, K0)),
        (),
        (*loads, compute, Store(f"b{arity}", I0, "v9")),
    )


def cast_kernel(source: torch.dtype, to: torch.dtype) -> LoopKernel:
    body = (Load("v0", source, "b0", I0), Compute("v1", to, "cast", ("v0",)), Store("b1", I0, "v1"))
    return LoopKernel(
        "cpu", params((source, "read"), (to, "write")), (K0,), axes((I0, K0)), (), body
    )


def short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def all_kernels() -> dict[str, LoopKernel]:
    kernels = {f"{name}_{short(dtype)}": kernel_of(name, dtype) for name, dtype in CASES}
    for source, to in itertools.product((*DTYPES, *HALF_DTYPES), repeat=2):
        kernels[f"cast_{short(source)}_{short(to)}"] = cast_kernel(source, to)
    return kernels


@dataclasses.dataclass
class Built:
    """All kernels built for one ISA level, and those of them that have a loop which GCC did not
    vectorise.
    """

    level: str
    libraries: dict[str, Library]
    missed: set[str]

    def run(self, name: str, tensors, ints) -> None:
        assert self.libraries[name].run(name, tensors, ints) == 0


SOURCES = 4
"""The kernels are built in so many sources, side by side."""


@pytest.fixture(scope="module", params=isa.LEVELS)
def built(request, tmp_path_factory) -> Built:
    """The kernels, built for each level that the compiler knows, on any machine; GCC reports each
    loop that it vectorised.
    """
    level = request.param
    pending = list(all_kernels().items())
    folder = tmp_path_factory.mktemp(level)

    def build(number: int) -> tuple[Library, set[str]]:
        report = folder / f"{number}.txt"
        flags = (f"-fopt-info-vec={report}",)
        options = dataclasses.replace(run_cpp.OPTIONS, isa=level, cxx_flags=flags)
        library = Library(dict(pending[number::SOURCES]), options)
        return library, loops_missed(library.text, report.read_text())

    with ThreadPoolExecutor(SOURCES) as pool:
        parts = list(pool.map(build, range(SOURCES)))
    libraries = {name: library for library, _ in parts for name in library.kernels}
    return Built(level, libraries, set().union(*(missed for _, missed in parts)))


@pytest.fixture(scope="module")
def library(built) -> Built:
    """The same, where this processor can execute it."""
    if isa.LEVELS.index(built.level) < isa.LEVELS.index(isa.detect()):
        pytest.skip(f"this machine has no {built.level}")
    return built


def loops_missed(source: str, report: str) -> set[str]:
    """The kernels with a loop to be vectorised that GCC's report does not name."""
    lines = {int(line) for line in re.findall(r":(\d+):\d+: optimized: loop vectorized", report)}
    missed, name = set(), ""
    for number, line in enumerate(source.splitlines(), 1):
        name = match[1] if (match := re.match(r"static \w+ (\w+)_part", line)) else name
        if "#pragma omp simd" in line and lines.isdisjoint(range(number, number + 8)):
            missed.add(name)
    return missed


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


DIVISIONS = ("floor_divide", "trunc_divide", "fmod", "remainder")
SCALAR_LOOPS = (*DIVISIONS, "pow")
"""No vector form of integers, for which processors have no division."""

NOT_LOOPS = {"signbit_uint8", "cast_float16_float32", "cast_float32_float16"}
"""Never set, the loop becomes a memset; between rows of floats, a memcpy."""

_COMPARED = ("eq", "ne", "lt", "le", "gt", "ge")
SCALAR_AT = {
    "avx512": set(),
    "avx2": set(),
    # SSE2 is what every x86-64 processor has: it is there to run at all, not to be fast.
    "baseline": {
        # No comparison of 64-bit integers.
        *(f"{name}_int64" for name in (*_COMPARED, "abs", "sign", "signbit", "maximum", "minimum")),
        "cast_int64_bool",
        # No packing of the masks that comparisons of doubles make.
        *(f"{name}_float64" for name in (*_COMPARED, "sign", "isnan", "isinf", "signbit")),
        "cast_float64_bool",
        # No rounding instructions.
        *(f"{n}_{t}" for n in ("floor", "ceil", "round", "trunc") for t in ("float32", "float64")),
        *(f"{name}_{t}" for name in DIVISIONS for t in ("float32", "float64")),
        # No fused multiply-add.
        *("fma_float32", "fma_float64"),
        # No shifts by an amount for each lane.
        *(f"shift_{way}_{short(dtype)}" for way in ("left", "right") for dtype in DTYPES),
        # No conversions of 64-bit integers.
        *(f"cast_{short(dtype)}_int64" for dtype in (*DTYPES[:2], *HALF_DTYPES)),
        *(f"cast_int64_{short(dtype)}" for dtype in (*DTYPES[:2], *HALF_DTYPES)),
    },
}
"""What GCC does not vectorise at each level, and why."""


def test_every_other_loop_is_vectorised(built):
    scalar = {
        f"{name}_{short(dtype)}"
        for name, dtype in CASES
        if name in SCALAR_LOOPS and not dtype.is_floating_point
    }
    scalar.add("lgamma_float64")  # libm's
    assert built.missed - scalar - NOT_LOOPS - SCALAR_AT[built.level] == set()


def test_the_report_is_understood(built):
    """Loops that no processor has instructions for are missed at every level."""
    assert {"trunc_divide_int64", "lgamma_float64"} <= built.missed
    assert "add_float32" not in built.missed


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
    """NaNs, infinities and zeros' signs as eager's; finite values within some ulps of the float64
    value, or closer than eager.
    """
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


@pytest.mark.parametrize("source", (*DTYPES, *HALF_DTYPES), ids=short)
def test_cast(library, source):
    torch.manual_seed(0)
    for to in (*DTYPES, *HALF_DTYPES):
        if source in HALF_DTYPES:
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


def test_large_integers_round_once(library):
    """int64 to float by way of a double would round twice: halfway between two floats, and a bit to
    either side.
    """
    halfway = [(1 << k) + (1 << k - 24) for k in range(30, 63)]
    values = [sign * (v + by) for v in halfway for by in (-1, 0, 1) for sign in (1, -1)]
    values += [(1 << 53) + by for by in range(-3, 4)] + [-(1 << 53) + by for by in range(-3, 4)]
    x = torch.tensor([*values, 2**63 - 1, -(2**63)])
    for dtype in (torch.float32, torch.float64):
        result = torch.empty(len(x), dtype=dtype)
        library.run(f"cast_int64_{short(dtype)}", [x, result], [len(x)])
        assert torch.equal(result, x.to(dtype))


def test_large_floats_become_integers(library):
    """All magnitudes of int64; beyond it, and for NaN, the processor's own conversion."""
    powers = torch.tensor([2.0**k for k in range(63)], dtype=torch.float64)
    x = torch.cat(
        [powers, powers.nextafter(powers * 2), powers.nextafter(powers / 2), powers * 1.3]
    )
    x = torch.cat(
        [x, -x, torch.tensor([-(2.0**63), 2.0**63, math.inf, -math.inf, math.nan, 1e300])]
    )
    for dtype in (torch.float64, torch.float32):
        values = x.to(dtype)
        result = torch.empty(len(x), dtype=torch.int64)
        library.run(f"cast_{short(dtype)}_int64", [values, result], [len(x)])
        inside = (values >= -(2.0**63)) & (values < 2.0**63)
        want = [int(v) if ok else -(2**63) for v, ok in zip(values.tolist(), inside, strict=True)]
        assert result.tolist() == want
