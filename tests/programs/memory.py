"""Programs whose results depend on where tensors lie in memory: identities over views that have an
offset or gaps, windows on memory.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import torch
from torch.nn import functional as F

from tests.programs.draw import rand
from tests.programs.program import Program, program

if TYPE_CHECKING:
    from collections.abc import Callable

PROGRAMS: dict[str, Program] = {}
add = program(PROGRAMS)


def with_offset(*shape: int) -> Callable[[], tuple[torch.Tensor]]:
    """A maker of one dense tensor that begins within its storage and needs a gradient."""
    return lambda: (torch.randn(shape[0] + 1, *shape[1:])[1:].requires_grad_(),)


def with_gaps(*shape: int) -> Callable[[], tuple[torch.Tensor]]:
    """A maker of every second row of a tensor, from the second on, which needs a gradient."""
    return lambda: (torch.randn(2 * shape[0] + 1, *shape[1:])[1::2].requires_grad_(),)


def plain(*shape: int) -> Callable[[], tuple[torch.Tensor]]:
    """A maker of one tensor with an offset that needs no gradient, as programs that write to it
    take.
    """
    return lambda: (rand(shape[0] + 1, *shape[1:])[1:],)


IDENTITIES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "mul": lambda y: y * 1,
    "div": lambda y: y / 1.0,
    "pow": lambda y: y**1,
    "add_nothing": lambda y: y - 0.0,
    "clone": lambda y: y.clone(),
    "contiguous": lambda y: y.contiguous(),
    "copied": lambda y: y.to(torch.float32, copy=True),
    "kept_dropout": lambda y: F.dropout(y, 0.0),
    "dropout_at_rest": lambda y: F.dropout(y, 0.5, training=False),
}
"""What gives back its operand's elements, as memory of its own."""

READERS: dict[str, Callable[[torch.Tensor], object]] = {
    "view": lambda y: (y, y.view(4, -1).sum(0)),
    "parts": lambda y: (y, y.unbind(0)[1] + 1, y.split(1, 1)[2].exp(), y.chunk(2)[1].exp()),
    "select": lambda y: (y, y[1].exp(), y[:, 1:3].exp(), y.t()[2] * 2),
    "diagonal": lambda y: (y, y.diagonal() + 1, y.diagonal(1).exp()),
    "gaps": lambda y: (y[::2], y[1]),
    "unfold": lambda y: y.unfold(1, 2, 1).sum(0),
    "as_strided": lambda y: (y, torch.as_strided(y, (2, 2), (2, 1), 1).sum(0)),
    "as_strided_scatter": lambda y: torch.as_strided_scatter(
        y, torch.ones(2, 2), (2, 2), (2, 1), 3
    ),
    "view_dtype": lambda y: y.detach().view(torch.int32)[1] + 1,
    "wider_dtype": lambda y: y.detach().view(torch.int64)[1] + 1,
    "complex": lambda y: torch.view_as_real(torch.view_as_complex(y.view(2, -1, 2))[1] * 2),
    "product": lambda y: (y, y.view(4, -1) @ y.view(4, -1)[:, :1].t().expand(2, 4)),
    "joined": lambda y: (
        y,
        torch.cat([y, y]),
        F.pad(y, (1, 1)),
        y.flip(0),
        y[torch.tensor([1, 0])],
    ),
    "sorted": lambda y: (y, torch.sort(y[1:]), y[1].cumsum(0)),
}
"""What reads views of that; each takes two rows of four."""

for _identity, _copy in IDENTITIES.items():
    for _name, _read in READERS.items():
        if _identity in ("mul", "clone") or _name in ("view", "as_strided"):
            # (As_strided of what `contiguous` leaves as it is gives a view of the input.)
            add(f"{_identity}_{_name}", lambda x, f=_copy, g=_read: g(f(x[1:3])), with_offset(5, 4))

CASES: dict[str, tuple[Callable[..., object], Callable[[], tuple[torch.Tensor, ...]]]] = {
    "select_mul": (lambda x: (lambda y: (y, y.view(2, 2).sum(0)))(x[1] * 1), with_offset(3, 4)),
    "chunk_div": (lambda m: (lambda v: (v, v[0].exp()))(m.chunk(2, 0)[1] / 1.0), with_offset(2, 4)),
    "with_gaps": (lambda x: (lambda y: (y, y[1:, 1:3].sum(0), y.t()[0]))(x / 1), with_gaps(3, 4)),
    "columns": (
        lambda x: (lambda y: (y, y.flip(0), y[:, 1].flip(0)))(x[:, 1:] * 1),
        with_gaps(3, 5),
    ),
    "no_elements": (
        lambda x: (lambda y: (y, y[1:].exp(), y.sum(0)))(x[2:2] * 1),
        with_offset(4, 4),
    ),
    "sum_of_one": (
        lambda x: (lambda y: (y, y.view(1), y.expand(3) * 2))(x[1, 2].sum()),
        with_offset(3, 4),
    ),
    "amax_of_one": (lambda x: (lambda y: (y * 2, y.view(1)))(x[1, 2].amax(0)), with_offset(3, 4)),
    "amax_of_one_of_a_vector": (lambda x: x[3].amax(0), with_offset(5)),
    "amin_of_one": (lambda x: x[2, 1].amin(0, keepdim=True) * 3, with_gaps(3, 4)),
    "aminmax_of_one": (lambda x: torch.aminmax(x[2, 1]), with_gaps(3, 4)),
    "others_of_one": (
        lambda x: (
            x[2, 1].mean() + 1,
            x[2, 1].prod(0),
            x[1, 1].logsumexp(0),
            x[1, 1].softmax(0),
            x[1, 1].norm(),
        ),
        with_gaps(3, 4),
    ),
    "cumulative_of_one": (
        lambda x: (x[3].cumsum(0) * 1, x[2].cummax(0)[0], x[1].sort()[0]),
        with_gaps(5),
    ),
    "window_on_an_input": (
        lambda x: torch.as_strided(x[1], (2, 2), (2, 1)).sum(0),
        with_offset(3, 4),
    ),
    "written_copy": (
        lambda x: (lambda y: (y.mul_(1), y.view(2, 2)[1].add_(1), y.sum()))(x[1] * 1),
        plain(4, 4),
    ),
    "written_input": (lambda x: (x[1].mul_(1).view(2, 2)[1].add_(1), x.sum()), plain(4, 4)),
    "two_copies": (lambda x: (lambda y, z: (y[::2], z[::2], y.add_(1)))(x * 1, x * 1), plain(6, 4)),
}


def complex_rand(*shape: int) -> torch.Tensor:
    """Normal complex numbers."""
    return torch.randn(shape, dtype=torch.complex64)


# Operators whose schemas hide that results share memory; those that give some tensors back as they
# are.
CASES |= {
    "difference_of_complex_products": (
        lambda x, w, v: x @ w - x @ v,
        lambda: (complex_rand(3, 4, 5), complex_rand(5, 6), complex_rand(5, 6)),
    ),
    "lu_of_complex": (
        lambda x: torch.view_as_real(torch.linalg.lu_factor(torch.complex(x, x.flip(0)))[0]),
        with_offset(4, 4),
    ),
    "unsafe_split": (
        lambda x: (lambda a, b: (a * 2 - b, a))(*torch.unsafe_split(x.exp(), 2)),
        with_offset(4, 3),
    ),
    "unsafe_split_out": (lambda x: torch.unsafe_split(x, 2), with_offset(4, 3)),
    "unsafe_split_written": (
        lambda x: (lambda y: (y[0].add_(1), y[1]))(torch.unsafe_split(x * 2, 2)),
        plain(4, 3),
    ),
    "unsafe_chunk_of_complex": (
        lambda x, w: (lambda a, b: a @ w - b @ w)(*torch.unsafe_chunk(x * 2, 2)),
        lambda: (complex_rand(4, 3), complex_rand(3, 3)),
    ),
    "conj_physical_": (lambda x: x.clone().conj_physical_(), plain(4, 3)),
    "conj_physical_of_ints": (lambda x: x.clone().conj_physical_(), lambda: (torch.arange(5)[1:],)),
    "conj_physical_of_complex": (
        lambda x: x.clone().conj_physical_(),
        lambda: (complex_rand(5, 2)[1:],),
    ),
    "conj_physical_of_an_input": (lambda x: x.conj_physical_(), plain(4, 3)),
    "conj_physical_out": (lambda x: torch.conj_physical(x, out=torch.empty(4, 3)), plain(4, 3)),
    "conj_physical_into": (
        lambda x, y: torch.conj_physical(x, out=y),
        lambda: (rand(4, 3), rand(4, 3)),
    ),
    "given_back": (
        lambda x: (
            x.conj(),
            x.real,
            x.resolve_conj(),
            x.resolve_neg(),
            x.contiguous(),
            x.to(torch.float32),
            x.cpu(),
        ),
        with_offset(4, 3),
    ),
    "given_back_views": (
        lambda x: (
            x.expand_as(x),
            x.reshape(x.shape),
            x.positive(),
            x.view_as(x),
            x.flatten(),
            x.squeeze(),
            x.ravel(),
        ),
        with_gaps(4, 3),
    ),
    "given_back_by_others": (
        lambda x: (
            x.type_as(x),
            x.float(),
            x.conj_physical(),
            torch.real(x),
            x.to(x),
            x.sum_to_size(4, 3),
            x.expand(4, 3),
        ),
        with_offset(4, 3),
    ),
    "copied_by_others": (
        lambda x: (
            x.clone(),
            x.repeat(1, 1),
            x.tile(1),
            x.flip(()),
            x.roll(0),
            x.clamp(-99),
            torch.hstack([x]),
            x + 0.0,
        ),
        with_offset(4, 3),
    ),
    "given_back_and_written": (
        lambda x: (
            lambda y: (y.contiguous().add_(1), y.float().mul_(2), y.resolve_conj().sub_(3), y)
        )(x.clone()),
        plain(4, 3),
    ),
}

for _name, (_function, _make) in CASES.items():
    add(_name, _function, _make)

# Copies that keep the gaps of what they are copies of, and gradients of inputs with gaps.
LAYOUTS: dict[str, Callable[[], tuple[torch.Tensor]]] = {
    "rows": with_gaps(4, 5),
    "columns": lambda: (torch.randn(4, 10)[:, ::2].requires_grad_(),),
    "transposed": lambda: (torch.randn(5, 4).t().requires_grad_(),),
    "columns_transposed": lambda: (torch.randn(5, 8)[:, ::2].t().requires_grad_(),),
    "one_row": with_gaps(1, 5),
}
SCATTERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "select": lambda x: torch.select_scatter(x, torch.ones(5), 0, 0),
    "slice": lambda x: torch.slice_scatter(x, torch.ones(1, 5), 0, 0, 1),
    "diagonal": lambda x: torch.diagonal_scatter(x, torch.ones(min(x.shape))),
    "index_put": lambda x: x.index_put((torch.tensor([0]),), torch.ones(1)),
    "masked": lambda x: x.masked_fill(x > 0, 1.0),
    "read_again": lambda x: torch.select_scatter(x * 1, torch.ones(5), 0, 0)[:, 1:].exp(),
}
for (_layout, _make), (_name, _function) in product(LAYOUTS.items(), SCATTERS.items()):
    add(f"{_name}_scatter_of_{_layout}", _function, _make)
for _layout, _make in LAYOUTS.items():
    add(
        f"gradients_of_{_layout}",
        lambda x: (
            x.exp(),
            x[:, 1:] * x[:, :-1],
            x @ x.t(),
            x.sum(0),
            x.reshape(-1) * 2,
            x.softmax(1),
            x.flip(0),
        ),
        _make,
    )
COPIES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "clone": lambda x: x.clone(),
    "contiguous_clone": lambda x: x.clone(memory_format=torch.contiguous_format),
    "cat": lambda x: torch.cat([x]),
    "copy_": lambda x: torch.empty(x.shape).copy_(x),
    "copy_like": lambda x: torch.empty_like(x).copy_(x),
    "flips": lambda x: x.flip(0).flip(0),
    "times_one": lambda x: (x * 1).contiguous(),
}
for _name, _function in COPIES.items():
    for _strides in ((3, 1, 1), (3, 9, 1), (3, 3, 1)):
        add(
            f"{_name}_of_row_with_strides_{'_'.join(map(str, _strides))}",
            _function,
            lambda strides=_strides: (rand(12).as_strided((2, 1, 3), strides),),
        )
_FEW, _MANY = torch.randn(4, 1, 3, 3), torch.randn(8, 4, 3, 3)
add(
    "convolutions_to_one_channel",
    lambda x: F.conv_transpose2d(
        F.conv2d(F.conv2d(x, _FEW, stride=2, padding=1), _MANY, stride=2, padding=1),
        _MANY[:, :1],
        stride=2,
    ),
    lambda: (rand(1, 1, 8, 8),),
)
