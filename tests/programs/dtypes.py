"""Programs on dtypes that kernels do not take: complex numbers (lazily conjugated and negated ones,
too), float8, unsigned integers of 16 bits and more.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import torch

from tests.programs.draw import grad, rand
from tests.programs.program import Program, program

if TYPE_CHECKING:
    from collections.abc import Callable

PROGRAMS: dict[str, Program] = {}
add = program(PROGRAMS)


def numbers(*shape: int) -> torch.Tensor:
    """Normal complex numbers."""
    return torch.randn(shape, dtype=torch.complex64)


def parts() -> tuple[torch.Tensor, torch.Tensor]:
    """The real and the imaginary parts of some numbers; both need a gradient."""
    return grad(3, 5), grad(3, 5)


def square_parts() -> tuple[torch.Tensor, torch.Tensor]:
    """As `parts`, of a square matrix."""
    return grad(3, 3), grad(3, 3)


def offset() -> tuple[torch.Tensor]:
    """Complex numbers that begin within their storage."""
    return (numbers(4, 2)[1:],)


# Lazy conjugation and negation
# --------------------------------------------------------------------------------------

STEPS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "conj": lambda z: z.conj(),
    "neg": lambda z: torch._neg_view(z),
    "real": lambda z: z.real,
    "imag": lambda z: z.imag if z.is_complex() else z,
    "resolved": lambda z: z.resolve_conj(),
    "resolved_neg": lambda z: z.resolve_neg(),
    "as_real": lambda z: torch.view_as_real(z) if z.is_complex() else z,
    "as_complex": lambda z: (
        torch.view_as_complex(z) if z.shape[-1] == 2 and not z.is_complex() else z
    ),
    "clone": lambda z: z.clone(),
    "contiguous": lambda z: z.mT.contiguous(),
    "adjoint": lambda z: z.mH,
    "part": lambda z: z[1:],
    "physical": lambda z: z.conj_physical(),
    "times": lambda z: z * 2,
    "wider": lambda z: z.to(torch.complex128),
}
"""What gives, takes or drops the bits that say that elements are yet to be conjugated or negated.
"""

FIRST = ("conj", "neg", "as_real")
LAST = ("imag", "as_real", "clone", "resolved", "times", "real")


def composed(rows: list[tuple[str, ...]]) -> Callable[[torch.Tensor], list[Any]]:
    """All these compositions in one program, each with the bits of its result, or its error."""

    def run(z: torch.Tensor) -> list[Any]:
        found: list[Any] = []
        for names in rows:
            out = z
            for name in names:
                out = STEPS[name](out)
            found += [out, out.is_conj(), out.is_neg(), out.resolve_conj().resolve_neg() * 1]
        return found

    return run


def possible(names: tuple[str, ...]) -> bool:
    """Whether eager takes the composition."""
    try:
        composed([names])(numbers(3, 2))
    except RuntimeError:
        return False
    return True


for _first, _second in product(FIRST, STEPS):
    _rows = [names for names in ((_first, _second, last) for last in LAST) if possible(names)]
    if _rows:
        add(f"{_first}_{_second}", composed(_rows), offset)

COMPLEX: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]] = {
    "view_as_real_refuses": (lambda z: torch.view_as_real(z.conj()), offset),
    "imag_of_conj": (
        lambda x, y: [
            f(torch.complex(x, y).conj())
            for f in (torch.imag, torch.real, lambda z: z.imag.exp(), lambda z: z.clone().imag)
        ],
        parts,
    ),
    "conj_out": (lambda x, y: torch.complex(x, y).conj(), parts),
    "conj_of_result": (
        lambda x, y: (lambda z: (z, z.conj(), z.conj().imag))(torch.complex(x, y) * 2),
        parts,
    ),
    "lazy_gradients": (
        lambda x, y: (torch.complex(x, y).conj().imag.exp() * 2, x.sin().neg()),
        parts,
    ),
    "neg_view_out": (
        lambda x: (torch._neg_view(x), torch._neg_view(x)[0] + 1, torch._neg_view(x * 2)[1:]),
        lambda: (grad(3, 4),),
    ),
    "neg_view_written": (lambda x: (torch._neg_view(x).add_(1), x), lambda: (rand(3, 4),)),
    "conj_written": (lambda z: (z.conj().mul_(1j), z), offset),
    "conj_part_written": (
        lambda z: (lambda y: (y.conj()[1:].copy_(z[1:]), y.imag.fill_(2), y))(z.clone()),
        offset,
    ),
    "real_of_conj_written": (
        lambda z: (lambda y: (y, y.conj().imag.add_(1), y.real.zero_()))(z * 2),
        offset,
    ),
    "adjoint_product": (lambda x, y: (torch.complex(x, y) @ torch.complex(x, y).mH).real, parts),
    "hfft": (
        lambda x, y: (torch.fft.hfft(torch.complex(x, y)), torch.fft.irfft(torch.complex(x, y))),
        parts,
    ),
    "hfft_of_several": (
        lambda x, y: (torch.fft.hfft2(torch.complex(x, y)), torch.fft.hfftn(torch.complex(x, y))),
        parts,
    ),
    "ihfft": (
        lambda x, y: (
            torch.view_as_real(torch.fft.ihfft(x)),
            torch.view_as_real(torch.fft.ihfft2(y)),
        ),
        parts,
    ),
    "vdot": (
        lambda x, y: (
            torch.vdot(torch.complex(x, y)[0], torch.complex(y, x)[1]).real,
            torch.complex(x, y).abs(),
        ),
        parts,
    ),
    "eigenvalues": (
        lambda x, y: torch.linalg.eigvalsh(torch.complex(x, y) + torch.complex(x, y).mH),
        square_parts,
    ),
    "solved": (
        lambda x, y: torch.view_as_real(
            torch.linalg.solve(torch.complex(x, y).mH, torch.complex(x, y))
        ),
        square_parts,
    ),
    # Copies of complex tensors, and writes to them.
    "clones": (
        lambda z: (z.clone(), z.t().clone(), z[1:].clone(), z.t().contiguous(), z * 1, z * 1),
        offset,
    ),
    "clones_of_double": (
        lambda z: (z.clone(), z.t().contiguous()),
        lambda: (torch.randn(3, 5, dtype=torch.complex128),),
    ),
    "clones_in_training": (
        lambda x, y: (lambda z: (z.clone().real, z * 1, z.abs()))(torch.complex(x, y)),
        parts,
    ),
    "written": (lambda z: (z.add_(1j), z[1].mul_(2)), offset),
    "written_with_gaps": (lambda z: z.mul_(2j), lambda: (numbers(6, 3)[::2],)),
    "written_transposed": (lambda z: (z.mul_(2j), z[0]), lambda: (numbers(5, 3).t(),)),
    "written_from_real": (lambda z, x: z.copy_(x), lambda: (numbers(3, 5), rand(3, 5))),
    "written_in_training": (
        lambda x, y: (lambda z: (z.mul_(2j).real, z))(torch.complex(x, y)),
        parts,
    ),
    "swapped": (
        lambda z, y: (lambda t: (z.copy_(y), y.copy_(t)))(z.clone()),
        lambda: (numbers(3, 5), numbers(3, 5)),
    ),
    "old_value": (lambda z: (lambda y, v: (y, v, z.zero_()))(z * 1, z[1].clone()), offset),
    "no_elements": (lambda z: (z.clone(), z.add_(1)), lambda: (numbers(0, 5),)),
    "no_dims": (lambda z: (z.clone(), z.add_(1)), lambda: (numbers(3)[1],)),
}

for _name, (_function, _make) in COMPLEX.items():
    add(_name, _function, _make, factor=32.0, exact=False)

# Dtypes that are stored only
# ----------------------------------------------------------------------------------------

FLOAT8 = (
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
)
UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)


def float8_programs(name: str, dtype: torch.dtype) -> None:
    """Copies, moves, casts and writes of a float8 dtype."""

    def make() -> tuple[torch.Tensor]:
        return ((torch.rand(4, 5) + 0.5).to(dtype)[1:],)

    def plain() -> tuple[torch.Tensor]:
        return (torch.rand(3, 5) + 0.5,)

    def written() -> tuple[torch.Tensor, torch.Tensor]:
        return *make(), *plain()

    add(
        f"{name}_clones",
        lambda x: (x.clone(), x[1:].clone(), x.t().contiguous(), x.view(torch.uint8) + 1),
        make,
        exact=False,
    )
    add(
        f"{name}_casts",
        lambda x: (x.float(), x.float() * 2, x.to(torch.bfloat16), x.half().exp()),
        make,
        exact=False,
    )
    add(
        f"{name}_made",
        lambda x: (
            x.to(dtype),
            (x * 2).to(dtype),
            (x + 0.1).to(dtype).float(),
            x.bfloat16().to(dtype),
        ),
        plain,
        exact=False,
    )
    add(
        f"{name}_moved",
        lambda x: (x.reshape(-1), x.expand(2, 3, 5), x.permute(1, 0), x.unsqueeze(0)),
        make,
        exact=False,
    )
    add(f"{name}_written", lambda x, y: (x.copy_(y), x[1].copy_(y[0])), written, exact=False)
    add(
        f"{name}_trained",
        lambda x: x.abs().add(0.5).to(dtype).float() * x,
        lambda: (grad(3, 5),),
        exact=False,
    )


def unsigned_programs(name: str, dtype: torch.dtype) -> None:
    """Copies, moves, casts and writes of an unsigned dtype."""

    def make() -> tuple[torch.Tensor]:
        return (torch.arange(20).view(4, 5).to(dtype)[1:],)

    def written() -> tuple[torch.Tensor, torch.Tensor]:
        return *make(), torch.arange(15).view(3, 5)

    add(f"{name}_clones", lambda x: (x.clone(), x[1:].clone(), x.t().contiguous()), make)
    add(
        f"{name}_casts",
        lambda x: (x.float(), x.long() * 2, x.int(), x.bool(), x.to(torch.uint8)),
        make,
    )
    add(f"{name}_made", lambda x: (x.to(dtype), x.long().to(dtype)), make)
    add(
        f"{name}_moved",
        lambda x: (x.reshape(-1), x.reshape(5, 3).contiguous(), torch.cat([x, x]), x == x),
        make,
    )
    add(f"{name}_written", lambda x, y: (x.copy_(y), x[1].fill_(3)), written)


for _dtype in FLOAT8:
    float8_programs(str(_dtype).removeprefix("torch."), _dtype)
for _dtype in UNSIGNED:
    unsigned_programs(str(_dtype).removeprefix("torch."), _dtype)

# Numbers that a dtype does not hold
# ----------------------------------------------------------------------------

STORING: dict[str, Callable[[torch.Tensor, Any], Any]] = {
    "full": lambda x, n: torch.full((3,), n, dtype=x.dtype),
    "full_of_one": lambda x, n: torch.full((1,), n, dtype=x.dtype),
    "full_like": lambda x, n: torch.full_like(x, n),
    "new_full": lambda x, n: x.new_full((2,), n),
    "fill": lambda x, n: x.clone().fill_(n),
    "pad": lambda x, n: torch.nn.functional.pad(x, (1, 1), value=n),
    "cropping_pad": lambda x, n: torch.nn.functional.pad(x, (-1, 0), value=n),
    "scatter": lambda x, n: x.scatter(0, torch.tensor([1]), n),
    "scatter_nothing": lambda x, n: x.scatter(0, torch.zeros(0, dtype=torch.int64), n),
    "where": lambda x, n: torch.where(x > 1, x, n),
    "arithmetic": lambda x, n: (x + n, x * n, x > n, x.masked_fill(x > 100, 1)),
}
NOT_HELD = (
    (torch.float16, (1e6, -70000)), (torch.bfloat16, (1e39,)), (torch.float32, (1e39,)),
    (torch.int8, (300,)), (torch.uint8, (-1, -1.0, -300)), (torch.int32, (2**40,)),
)  # fmt: skip


def storing_program(name: str, dtype: torch.dtype, number: float) -> None:
    """A number that `dtype` does not hold is stored: eager's error, or what it makes of it."""
    store = STORING[name]
    kind = str(dtype).removeprefix("torch.")
    add(
        f"{name}_{number}_in_{kind}",
        lambda x: store(x, number),
        lambda: (torch.tensor([0, 1, 2, 3]).to(dtype),),
    )


for _name, (_dtype, _numbers) in product(STORING, NOT_HELD):
    for _number in _numbers:
        storing_program(_name, _dtype, _number)

for _count in range(3):
    add(
        f"arange_of_{_count}_bools",
        lambda x, count=_count: torch.arange(count, dtype=torch.bool) & (x > 0),
        lambda count=_count: (torch.randn(count),),
    )
