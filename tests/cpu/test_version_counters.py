"""Version counters of tensors that a compiled program writes move where eager moves them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.functional as F

import flambeau

if TYPE_CHECKING:
    from collections.abc import Callable

    Program = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def norm(x: torch.Tensor, mean: torch.Tensor, var: torch.Tensor) -> torch.Tensor:
    return F.batch_norm(x, mean, var, training=True)


def legit(x: torch.Tensor, mean: torch.Tensor, var: torch.Tensor) -> torch.Tensor:
    return torch._native_batch_norm_legit(x, None, None, mean, var, True, 0.1, 1e-5)[0]


def norm_and_write(x: torch.Tensor, mean: torch.Tensor, var: torch.Tensor) -> torch.Tensor:
    mean.mul_(2)
    return F.batch_norm(x, mean, var, training=True)


def write(x: torch.Tensor, mean: torch.Tensor, var: torch.Tensor) -> torch.Tensor:
    var.add_(1)
    return x * var[0]


def many_writes(x: torch.Tensor, mean: torch.Tensor, var: torch.Tensor) -> torch.Tensor:
    var.add_(1)
    var[0] = 2
    var.view(-1).mul_(3)
    mean.sub_(1).sub_(0)
    return x * var[0]


def writes_in_a_loop(x: torch.Tensor, mean: torch.Tensor, var: torch.Tensor) -> torch.Tensor:
    for i in range(len(mean)):
        mean[i] = i
    torch._foreach_add_([mean, var], 1)
    with torch.no_grad():
        x.mul_(2)
        x.t_() if x.ndim == 2 else x.add_(1)
    return x * mean[0]


def versions(program: Program, *, grad: bool) -> tuple[list[int], list[torch.Tensor]]:
    torch.manual_seed(0)
    tensors = [torch.randn(4, 3, 5, requires_grad=grad), torch.zeros(3), torch.ones(3)]
    program(*tensors)
    return [tensor._version for tensor in tensors], tensors


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize(
    "program", [norm, legit, norm_and_write, write, many_writes, writes_in_a_loop]
)
def test_counters_are_eagers(program: Program, grad: bool) -> None:
    wanted, theirs = versions(program, grad=grad)
    found, ours = versions(flambeau.compile(program), grad=grad)
    assert found == wanted
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("executor", ["c", "python"])
@pytest.mark.parametrize("program", [many_writes, writes_in_a_loop])
def test_each_write_counts(program: Program, executor: str) -> None:
    wanted, _ = versions(program, grad=False)
    compiled = flambeau.compile(program, options={"executor": executor}, fullgraph=True)
    assert versions(compiled, grad=False)[0] == wanted


@pytest.mark.parametrize("executor", ["c", "python"])
def test_statistics_that_are_only_updated_stay_uncounted(executor: str) -> None:
    wanted, _ = versions(norm, grad=False)
    assert wanted == [0, 0, 0], "eager's batch norm counts no write"
    compiled = flambeau.compile(norm, options={"executor": executor})
    assert versions(compiled, grad=False)[0] == wanted


def test_writes_under_autograd_count_each() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        x[0].add_(1)
        return x.add_(1).sin()

    for run in (program, flambeau.compile(program)):
        x = torch.ones(3, requires_grad=True) * 1
        run(x)
        assert x._version == 3


def written_data(x: torch.Tensor) -> Any:
    x.data.add_(1)
    return x * 2


def data_apart(x: torch.Tensor) -> Any:
    data = x.data
    data.mul_(2)
    data[0].add_(1)
    with torch.no_grad():
        x.add_(1)
    return data, data[0], x.data, x.detach(), x


def data_of_fresh(x: torch.Tensor) -> Any:
    y = x * 2
    y.add_(1)
    return y.data, y, y.data[0], y.detach()


def copied_to_itself(x: torch.Tensor) -> Any:
    with torch.no_grad():
        return x.copy_(x)


def unchanged(x: torch.Tensor) -> Any:
    with torch.no_grad():
        x.add_(0).mul_(1)
        x.sub_(1).add_(1)
    return x + 1


def same_geometry(x: torch.Tensor) -> Any:
    with torch.no_grad():
        x.squeeze_()
        x.t_().t_()
    return x * 2


def no_elements(x: torch.Tensor) -> Any:
    y = x[:0].detach()
    y.add_(1)
    z = x[:0] * 2
    z.add_(1)
    return z, y


def fresh(x: torch.Tensor) -> Any:
    y = x.sin()
    y.add_(1)
    y[0].mul_(2)
    return y, y, y[1], x * 2


def fresh_view(x: torch.Tensor) -> Any:
    y = x.sin()
    y[0].mul_(2)
    return y[1]


def filled(x: torch.Tensor) -> Any:
    y = torch.empty(3)
    for row in range(3):
        y[row] = x[row, 0].detach()
    torch.sin(x.detach()[0, :3], out=y)
    return y


def masked(x: torch.Tensor) -> Any:
    y = x * 1
    y[y > 0] = 0
    y[:, [1, 2]] = 2
    y.masked_fill_(y < 0, 1)
    return y


def lists(x: torch.Tensor) -> Any:
    y = [x * 1, x * 2]
    torch._foreach_add_(y, 1)
    torch._foreach_mul_(y, 2)
    return tuple(y)


def split(x: torch.Tensor) -> Any:
    y = torch.unsafe_split((x * 2).detach(), 2)
    y[0].add_(1)
    return tuple(y)


def matmul(x: torch.Tensor) -> Any:
    return torch.baddbmm(x @ x.t(), x[None], x.t()[None], beta=0.5), x[:, :0] @ x[:0]


class Dirty(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        x.add_(1).mul_(2)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * 2


def dirty(x: torch.Tensor) -> Any:
    return Dirty.apply(x), Dirty.apply(x * 2)


def counted_and_written(x: torch.Tensor) -> Any:
    x.data.mul_(2)
    x.copy_(x)
    return x.mul_(3).sum()


EVERYWHERE = [
    written_data, data_apart, data_of_fresh, copied_to_itself, unchanged, same_geometry,
    no_elements, fresh, fresh_view, filled, masked, lists, split, matmul, dirty,
    counted_and_written,
]  # fmt: skip


def counts(program: Callable[[torch.Tensor], Any], x: torch.Tensor) -> list[Any]:
    """The versions of input and outputs; then, which of them a write to each one moves."""
    results = program(x)
    tensors = [x, *(results if isinstance(results, tuple) else (results,))]
    found: list[Any] = [[tensor._version for tensor in tensors]]
    for tensor in tensors:
        before = [other._version for other in tensors]
        torch.autograd.graph.increment_version(tensor)
        found.append(
            [other._version - version for other, version in zip(tensors, before, strict=True)]
        )
    return [*found, *tensors]


@pytest.mark.parametrize("interior", [False, True])
@pytest.mark.parametrize("backend", ["inductor", "python executor", "aot_eager"])
@pytest.mark.parametrize("program", EVERYWHERE)
def test_every_tensor_stands_where_eager_has_it(
    program: Callable[[torch.Tensor], Any], backend: str, interior: bool
) -> None:
    options = {"executor": "python"} if backend == "python executor" else {}
    compiled = flambeau.compile(
        program,
        fullgraph=True,
        backend="inductor" if options else backend,
        options={"check": True, **options},
    )
    for _ in range(2):
        x = torch.randn(3, 4, requires_grad=interior) * torch.ones(3, 4)
        x.detach().add_(1)
        wanted, found = counts(program, x.clone()), counts(compiled, x.clone())
        torch.testing.assert_close(found, wanted)
    explanation = flambeau.explain(program)(x.clone())
    assert [graph.fallback for graph in explanation.graphs] == [None]


def test_reading_a_version() -> None:
    def program(x: torch.Tensor) -> Any:
        before = x._version
        x.add_(1)
        y = x * before
        return y, x._version, y.add_(1)._version, x[0]._version

    compiled = flambeau.compile(program)
    for writes in range(4):
        results = []
        for run in (program, compiled):
            x = torch.ones(3)
            for _ in range(writes):
                x.mul_(2)
            results.append((run(x), x, x._version))
        torch.testing.assert_close(*results)


@pytest.mark.parametrize("between", [False, True])
def test_pieces_of_a_split_graph_count(between: bool) -> None:
    def program(x: torch.Tensor) -> Any:
        y = x * 2
        y.add_(1)
        if between:
            n = x.nonzero().add_(1)
            y.mul_(n.shape[0])
        else:
            y.mul_(x.sum().item())
        y.data.sub_(1)
        return y, x.add_(1)

    x = torch.randn(3, 4)
    wanted, found = counts(program, x.clone()), counts(flambeau.compile(program), x.clone())
    torch.testing.assert_close(found, wanted)


def test_inference_tensors_have_no_versions() -> None:
    def program(x: torch.Tensor) -> Any:
        y = x.data
        y.add_(1)
        z = x * 2
        z.add_(1)
        return y, z, x.copy_(x)

    with torch.inference_mode():
        x = torch.randn(3, 4)
        for backend in ("inductor", "aot_eager"):
            compiled = flambeau.compile(program, backend=backend)
            torch.testing.assert_close(compiled(x.clone()), program(x.clone()))
