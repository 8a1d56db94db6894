"""Views of any geometry lie inside their memory: the error for those that do not is eager's, and
none reads beyond it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

import flambeau
from tests.same import same
from tests.worlds import kinds

if TYPE_CHECKING:
    from collections.abc import Callable

BACKENDS = ("eager", "aot_eager", "inductor")


def taken_after_a_write(x: torch.Tensor) -> torch.Tensor:
    x.detach().add_(1)
    return x.as_strided((12,), (1,))


def written_after(x: torch.Tensor) -> torch.Tensor:
    y = x.detach().as_strided((12,), (1,))
    x.detach().add_(1)
    return y


VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "inside": lambda x: x.as_strided((2, 3), (1, 2)),
    "to the end": lambda x: x.as_strided((12,), (1,)),
    "beyond the end": lambda x: x.as_strided((9,), (9,)),
    "beyond by its offset": lambda x: x.as_strided((12,), (1,), 1),
    "before the start": lambda x: x.as_strided((2,), (1,), -1),
    "of a negative size": lambda x: x.as_strided((-2,), (1,)),
    "empty": lambda x: x.as_strided((0,), (100,), 1000),
    "of a result": lambda x: (x * 2).as_strided((13,), (1,)),
    "of a view of a result": lambda x: (x * 2)[1:].as_strided((12,), (1,), 0),
    "of a view": lambda x: x[1:].as_strided((12,), (1,), 0),
    "copied": lambda x: torch.as_strided_copy(x, (2, 3), (1, 2)),
    "copied beyond the end": lambda x: torch.as_strided_copy(x, (9,), (9,)),
    "copied beyond its result": lambda x: torch.as_strided_copy(x * 2, (13,), (1,)),
    "copied before the start": lambda x: torch.as_strided_copy(x, (2,), (1,), -1),
    "copied to an argument": lambda x: torch.as_strided_copy(
        x.detach(), size=(9,), stride=(9,), out=torch.empty(9)
    ),
    "written in part": lambda x: torch.as_strided_scatter(x, torch.ones(2), (2,), (5,)),
    "written beyond": lambda x: torch.as_strided_scatter(x, torch.ones(13), (13,), (1,)),
    "in place": lambda x: (x * 2).as_strided_((13,), (1,)),
    "taken after a write": taken_after_a_write,
    "written after it is taken": written_after,
    "written": lambda x: x.as_strided((13,), (1,)).zero_(),
}


def outcome(call: Callable[..., Any], x: torch.Tensor) -> Any:
    try:
        result = call(x)
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return result


def handling(view: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], Any]:
    def program(x: torch.Tensor) -> Any:
        try:
            return view(x) + 1
        except RuntimeError as error:
            return x - 1, str(error).splitlines()[0]

    return program


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", VIEWS)
def test_as_eager(name: str, dynamic: bool, backend: str) -> None:
    """Also in a program that handles the error, and of an input that is part of a larger tensor."""
    for program in (VIEWS[name], handling(VIEWS[name])):
        for make in (
            lambda: torch.arange(12.0).view(3, 4),
            lambda: torch.arange(12.0).view(3, 4).t(),
            lambda: torch.arange(100.0)[:12].view(3, 4),
            lambda: torch.arange(100.0)[40:64:2].view(3, 4),
            lambda: torch.arange(12.0).view(3, 4).requires_grad_(),
        ):
            if name == "written" and make().requires_grad:
                continue
            run = flambeau.compile(program, backend=backend, dynamic=dynamic)
            mine, yours = make(), make()
            same(outcome(run, mine), outcome(program, yours), f"{name} of {yours.stride()}")
            same(mine, yours, f"{name}: the input")


@pytest.mark.parametrize("backend", BACKENDS)
def test_symbolic_sizes_are_guarded(backend: str) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x.as_strided((4,), (2,)) * x.shape[0]

    run = flambeau.compile(program, backend=backend, dynamic=True)
    for size in (9, 8, 7, 20, 6, 3, 12):
        x = torch.randn(size)
        same(outcome(run, x), outcome(program, x), f"of {size}")
    captures = [kind for kind in kinds(run) if kind in ("capture", "recompile")]
    assert len(captures) <= 4


@pytest.mark.parametrize("backend", BACKENDS)
def test_sizes_in_the_data_are_checked(backend: str) -> None:
    def program(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return x[i > 0].as_strided((3,), (2,)) + 1

    run = flambeau.compile(program, backend=backend, fullgraph=True)
    x = torch.randn(8)
    for count in (7, 5, 6, 4, 2, 8):
        i = (torch.arange(8) < count).long()
        same(
            outcome(lambda x, i=i: run(x, i), x),
            outcome(lambda x, i=i: program(x, i), x),
            str(count),
        )


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_memory_of_an_input_may_shrink(backend: str) -> None:
    """What lies beyond the input itself is guarded; compiled kernels do not read it."""

    def program(x: torch.Tensor) -> torch.Tensor:
        return x.as_strided((6,), (1,)) * 2

    for call in (program, handling(program)):
        run = flambeau.compile(call, backend=backend, dynamic=False, fullgraph=True)
        for memory, part in ((9, 0), (3, 0), (9, 2), (9, 4), (6, 0), (5, 0), (9, 0)):
            x = torch.arange(float(memory))[part : part + 3]
            same(outcome(run, x), outcome(call, x), f"from {part} of {memory}")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_where_an_input_begins_is_guarded(dynamic: bool, backend: str) -> None:
    def program(x: torch.Tensor) -> Any:
        y = x[1:].as_strided((2,), (2,), 4) + 1
        return y, x.storage_offset(), x.as_strided((2,), (1,)) * 2

    run = flambeau.compile(program, backend=backend, dynamic=dynamic)
    for begin, end in ((0, 8), (2, 9), (4, 12), (0, 9), (5, 20)):
        x = torch.arange(20.0)[begin:end]
        same(run(x), program(x), f"from {begin}")
