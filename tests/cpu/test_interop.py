"""The borders swapped with torch.compile's: sizes that change stay right in both directions, and
their guards cross.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import flambeau

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CONV = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Flatten(2)).eval()


def rows(*sizes: int) -> list[tuple[Any, ...]]:
    return [(torch.randn(size, 8),) for size in sizes]


def data_dependent(x: torch.Tensor) -> torch.Tensor:
    return (x[x > 0] * 2).exp() * x.shape[0]


def writes(x: torch.Tensor) -> tuple[torch.Tensor, int]:
    y = x.detach()
    y.add_(y.shape[0])
    return x.sin(), 2 * x.shape[0]


PROGRAMS: dict[str, tuple[Callable[..., Any], list[tuple[Any, ...]]]] = {
    "pointwise": (lambda x: x * 2 + 1, rows(5, 6, 9, 1, 4)),
    "view": (lambda x: x.view(x.shape[0] // 2, 2, -1).sum(0), rows(4, 6, 10, 2)),
    "branch": (lambda x: x.sin() if x.shape[0] > 6 else x.cos(), rows(5, 6, 7, 9, 4)),
    "slices": (lambda x: torch.cat([x[1:], x[:-1]], 1).mean(1), rows(5, 6, 9)),
    "int": (
        lambda x, n: x * n + x.shape[0],
        [(torch.randn(size, 8), n) for size, n in ((5, 3), (6, 4), (9, 5), (3, 0))],
    ),
    "float": (
        lambda x, p: x * p,
        [(torch.randn(size, 8), p) for size, p in ((5, 0.3), (6, 0.4), (9, 0.5))],
    ),
    "product": (
        lambda x, y: torch.softmax(x @ y, -1),
        [(torch.randn(a, b), torch.randn(b, c)) for a, b, c in ((4, 5, 6), (5, 5, 6), (7, 3, 2))],
    ),
    "none of them": (
        lambda x, n: x.reshape(x.shape[1], x.shape[0]) * n + n,
        [(torch.randn(size, 8), size) for size in (5, 0, 6, 0, 1)],
    ),
    "variance": (lambda x: torch.var_mean(x, correction=0.5), rows(5, 6, 9)),
    "deviation": (lambda x: x.std(0), rows(5, 6, 9, 2)),
    "transposed": (lambda x: x.cumsum(0), [(torch.randn(8, size).t(),) for size in (5, 6, 9)]),
    "offset": (lambda x: x.relu() + 1, [(torch.randn(size, 9)[1:, 1:],) for size in (5, 6, 9)]),
    "convolution": (CONV, [(torch.randn(n, 3, h, h),) for n, h in ((2, 8), (3, 8), (4, 10))]),
    "data-dependent": (data_dependent, rows(5, 6, 9)),
    "writes": (writes, rows(5, 6, 9)),
}

TRAINED = PROGRAMS.keys() - {"writes", "offset", "int", "none of them"}
# None meets static sizes first, then symbolic ones.
CASES = [(name, None) for name in PROGRAMS]
CASES += [(name, True) for name in ("branch", "float", "data-dependent", "writes")]
CASES += [("view", False), ("int", False)]


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        yield
    torch._dynamo.reset()


def compare(program: Any, compiled: Any, arguments: tuple[Any, ...], training: bool) -> None:
    ours, theirs = ([_fresh(arg, training) for arg in arguments] for _ in range(2))
    expected, found = program(*theirs), compiled(*ours)
    for want, have in zip(_flat(expected), _flat(found), strict=True):
        torch.testing.assert_close(have, want)
        if isinstance(want, torch.Tensor):
            assert (have.shape, have.stride()) == (want.shape, want.stride())
    torch.testing.assert_close(ours, theirs)
    if training:
        _flat(expected)[0].square().sum().backward()
        _flat(found)[0].square().sum().backward()
        for mine, its in zip(ours, theirs, strict=True):
            if isinstance(its, torch.Tensor):
                torch.testing.assert_close(mine.grad, its.grad)


def _fresh(value: Any, training: bool) -> Any:
    """A copy with the same layout: a view of a copy of all its memory."""
    if not isinstance(value, torch.Tensor):
        return value
    memory = value.new_empty(0).set_(value.untyped_storage().clone())
    copy = memory.as_strided(value.shape, value.stride(), value.storage_offset()).detach()
    return copy.requires_grad_(training)


def _flat(value: Any) -> list[Any]:
    return list(value) if isinstance(value, tuple) else [value]


@pytest.mark.parametrize(("name", "dynamic"), CASES)
def test_torchs_capture_with_our_kernels(name: str, dynamic: bool | None) -> None:
    program, calls = PROGRAMS[name]
    compiled = torch.compile(program, backend="flambeau", dynamic=dynamic)
    for arguments in calls:
        compare(program, compiled, arguments, name in TRAINED)


@pytest.mark.parametrize(("name", "dynamic"), CASES)
def test_our_capture_with_torchs_autograd(name: str, dynamic: bool | None) -> None:
    from torch._dynamo.backends.debugging import aot_eager

    program, calls = PROGRAMS[name]
    compiled = flambeau.compile(program, backend=aot_eager, dynamic=dynamic)
    for arguments in calls:
        compare(program, compiled, arguments, name in TRAINED)


def test_our_capture_with_torchs_kernels() -> None:
    from torch._inductor.compile_fx import compile_fx

    program, calls = PROGRAMS["slices"]
    compiled = flambeau.compile(program, backend=compile_fx, dynamic=True)
    for arguments in calls:
        compare(program, compiled, arguments, True)
    assert len(flambeau.explain(compiled).graphs) == 1


@pytest.mark.parametrize("name", ["pointwise", "variance"])
def test_one_graph_serves_all_sizes_in_both_directions(name: str) -> None:
    program, _ = PROGRAMS[name]
    graphs = []
    theirs = torch.compile(program, backend=_counting("flambeau", graphs), dynamic=True)
    for (x,) in rows(5, 6, 9, 3):
        compare(program, theirs, (x,), False)
    assert len(graphs) == 1

    from torch._dynamo.backends.debugging import aot_eager

    ours = flambeau.compile(program, backend=aot_eager, dynamic=True)
    for (x,) in rows(5, 6, 9, 3):
        compare(program, ours, (x,), False)
    assert len(flambeau.explain(ours).graphs) == 1


def _counting(name: str, graphs: list[Any]) -> Callable[..., Any]:
    inner = torch._dynamo.lookup_backend(name)

    def backend(gm: Any, example_inputs: list[Any]) -> Any:
        graphs.append(gm)
        return inner(gm, example_inputs)

    return backend


def test_guards_of_our_compilers_are_torchs() -> None:
    """The row count must divide by four for the view: a call with another count is captured again,
    and raises what eager raises.
    """

    def program(x: torch.Tensor) -> torch.Tensor:
        return x.reshape(4, -1).sum(1)

    compiled = torch.compile(program, backend="flambeau", dynamic=True)
    for size in (4, 8, 12):
        compare(program, compiled, (torch.randn(size, 3),), False)
    with pytest.raises(Exception, match="invalid for input of size"):
        compiled(torch.randn(5, 3))


def test_frames_are_captured_after_torchs_compiler_has_failed() -> None:
    """It leaves its evaluator of frames behind then."""

    def refused(x: torch.Tensor) -> torch.Tensor:
        return x.reshape(4, -1)

    with pytest.raises(Exception, match="invalid for input of size"):
        torch.compile(refused, backend="eager")(torch.randn(5, 3))

    def branches(x: torch.Tensor) -> torch.Tensor:
        y = x.sin() + 1
        return y.cos() if y.sum().item() > 0 else y

    calls = torch.nn.Module()
    calls.forward = branches
    compiled = flambeau.compile(calls)
    compiled(torch.randn(3))
    assert len(flambeau.explain(compiled).graphs) == 2


@pytest.mark.parametrize("relation", ["at most 6", "equal", "a multiple of 3"])
def test_guards_of_a_backend_are_taken(relation: str) -> None:
    """A backend that decides by the sizes of fake tensors compiles again where they differ."""
    answers = []

    def backend(gm: Any, example_inputs: list[Any]) -> Any:
        fake_mode = torch._guards.detect_fake_mode(example_inputs)
        x, y = (fake_mode.from_tensor(example) for example in example_inputs)
        assert isinstance(x.shape[0], torch.SymInt)
        answer = bool(
            {
                "at most 6": x.shape[0] <= 6,
                "equal": x.shape[0] == y.shape[0],
                "a multiple of 3": x.shape[0] % 3 == 0,
            }[relation]
        )
        answers.append(answer)
        return lambda *inputs: (torch.tensor(answer),)

    compiled = flambeau.compile(lambda x, y: (x + 1).sum() + y.sum(), backend=backend, dynamic=True)
    for first, second in ((4, 5), (7, 5), (6, 5), (9, 9), (8, 8), (3, 9)):
        expected = {
            "at most 6": first <= 6,
            "equal": first == second,
            "a multiple of 3": first % 3 == 0,
        }[relation]
        assert bool(compiled(torch.randn(first, 2), torch.randn(second, 2))) is expected
    assert set(answers) == {True, False}


def test_symbolic_ints_are_given_as_torch_compile_gives_them() -> None:
    kinds = []

    def backend(gm: Any, example_inputs: list[Any]) -> Any:
        kinds.extend(map(type, example_inputs))
        return gm.forward

    compiled = flambeau.compile(lambda x, n: x * n, backend=backend, dynamic=True)
    for n in (3, 4, 5):
        torch.testing.assert_close(compiled(torch.ones(4), n), torch.full((4,), float(n)))
    assert kinds == [torch.Tensor, torch.SymInt]


def test_inputs_that_share_written_memory() -> None:
    from torch._dynamo.backends.debugging import aot_eager

    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x.sum() + y.sum()

    compiled = flambeau.compile(program, backend=aot_eager, dynamic=True)
    for size in (5, 6, 9):
        one, other = torch.ones(size, 4), torch.ones(size, 4)
        assert compiled(one[1:], one[:-1]) == program(other[1:], other[:-1])
        assert torch.equal(one, other)
