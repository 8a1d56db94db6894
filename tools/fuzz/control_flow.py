"""Compare random programs of control flow, compiled, with the same programs in plain Python."""

from __future__ import annotations

import linecache
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, TypeAlias

import torch
import torch.utils.checkpoint
from torch._higher_order_ops import associative_scan, scan, while_loop
from torch._higher_order_ops.map import map as map_rows
from torch.utils import _pytree as pytree

import flambeau
from tools.fuzz.control_flow_programs import program_of

Call: TypeAlias = Callable[..., Any]

TORCH = SimpleNamespace(
    cond=torch.cond,
    while_loop=while_loop,
    scan=scan,
    map=map_rows,
    associative_scan=lambda f, xs, dim, reverse=False: associative_scan(
        f, xs, dim, reverse=reverse, combine_mode="generic"
    ),
)
"""The operators."""


def _cond(predicate: Any, yes: Call, no: Call, operands: Any) -> Any:
    return yes(*operands) if bool(predicate) else no(*operands)


def _cond_of_rows(predicate: Any, yes: Call, no: Call, operands: Any) -> Any:
    """Both branches, since the rows of a vmap choose for themselves."""
    return pytree.tree_map(
        lambda one, other: torch.where(predicate, one, other), yes(*operands), no(*operands)
    )


def _while_loop(test: Call, body: Call, carried: Any) -> Any:
    while bool(test(*carried)):
        carried = body(*carried)
    return carried


def _while_loop_of_rows(test: Call, body: Call, carried: Any) -> Any:
    for _ in range(5):  # more steps than a program's loop has
        goes_on, after = test(*carried), body(*carried)
        carried = [torch.where(goes_on, a, b) for a, b in zip(after, carried, strict=True)]
    return carried


def _scan(combine: Call, carry: Any, xs: torch.Tensor, reverse: bool = False) -> Any:
    rows = []
    for x in reversed(xs.unbind(0)) if reverse else xs.unbind(0):
        carry, row = combine(carry, x)
        rows.append(row)
    return carry, torch.stack(rows[::-1] if reverse else rows)


def _map(function: Call, xs: torch.Tensor) -> torch.Tensor:
    return torch.stack([function(x) for x in xs.unbind(0)])


def _associative_scan(f: Call, xs: torch.Tensor, dim: int, reverse: bool = False) -> torch.Tensor:
    rows: list[torch.Tensor] = []
    for x in reversed(xs.unbind(dim)) if reverse else xs.unbind(dim):
        rows.append(f(rows[-1], x) if rows else x)
    return torch.stack(rows[::-1] if reverse else rows, dim)


_SAME = {"scan": _scan, "map": _map, "associative_scan": _associative_scan}
PYTHON = SimpleNamespace(cond=_cond, while_loop=_while_loop, **_SAME)
PYTHON_OF_ROWS = SimpleNamespace(cond=_cond_of_rows, while_loop=_while_loop_of_rows, **_SAME)


def _run(call: Call, seed: int, rows: int, dtype: torch.dtype) -> tuple[list[Any], list[Any]]:
    torch.manual_seed(1000 * seed + rows)
    x, y = (torch.randn(rows, 4, dtype=torch.float32).to(dtype) for _ in range(2))
    w = (torch.randn(4, 4) * 0.5).to(dtype)
    leaves = [each.requires_grad_(seed % 4 != 3) for each in (x, y, w)]
    results = pytree.tree_leaves(call(x, y, w))
    total = [
        (each * torch.linspace(1, 2, each.numel(), dtype=dtype).view(each.shape)).sum()
        for each in results
        if each.requires_grad
    ]
    found: Any = [None] * len(leaves)
    if total:
        found = torch.autograd.grad(torch.stack(total).sum(), leaves, allow_unused=True)
    # The operators give what no branch reads zeros for a gradient.
    gradients = [
        torch.zeros_like(leaf) if each is None else each
        for each, leaf in zip(found, leaves, strict=True)
    ]
    return results, [*gradients, *(leaf.detach() for leaf in leaves)]


def difference(seed: int, *, dynamic: bool | None = None, backend: str = "inductor") -> str | None:
    """How the program of this seed differs from plain Python, with its text; None if it does not.

    Computed in float64, where both are alike to the last places, and no condition changes.
    """
    text = program_of(seed)
    name = f"<control flow {seed}>"
    linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name
    scope: dict[str, Any] = {"torch": torch}
    exec(compile(text, name, "exec"), scope)
    program = scope["program"]
    plain = PYTHON_OF_ROWS if ".vmap(" in text else PYTHON
    call = flambeau.compile(
        lambda x, y, w: program(TORCH, x, y, w), dynamic=dynamic, backend=backend
    )
    for rows in (3, 5, 1, 3):
        try:
            theirs = _run(lambda x, y, w: program(plain, x, y, w), seed, rows, torch.float64)
        except (RuntimeError, ValueError, IndexError):
            return None  # no program
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                ours = _run(call, seed, rows, torch.float64)
            for part, mine, other in zip(("result", "gradient"), ours, theirs, strict=True):
                for number, (one, another) in enumerate(zip(mine, other, strict=True)):
                    torch.testing.assert_close(
                        one, another, rtol=1e-7, atol=1e-9, equal_nan=True, check_stride=False,
                        msg=lambda said, at=f"{part} {number}": f"{at}: {said}",
                    )  # fmt: skip
        except Exception as error:
            return f"seed {seed}, {rows} rows: {type(error).__name__}: {error}\n{text}"
    return None


def report(programs: int, seed: int, dynamic: bool | None, backend: str = "inductor") -> int:
    """Print what differs; 1 if anything does."""
    failures = 0
    for each in range(seed, seed + programs):
        text = difference(each, dynamic=dynamic, backend=backend)
        if text is not None:
            failures += 1
            print(text, flush=True)
    print(f"{programs} programs, {failures} differ")
    return 1 if failures else 0
