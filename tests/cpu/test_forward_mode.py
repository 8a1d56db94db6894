"""`torch.autograd.forward_ad` in compiled functions: one graph, beside eager."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.autograd.forward_ad as fw
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.utils import _pytree as pytree

import flambeau
from flambeau.report import report_of

if TYPE_CHECKING:
    from collections.abc import Callable


class Cube(torch.autograd.Function):
    """The forward takes ctx; the jvp is not that of the forward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, factor: float) -> torch.Tensor:
        y = x.sin()
        ctx.save_for_backward(x, y)
        ctx.save_for_forward(x, y)
        ctx.factor = factor
        return x**3 * factor

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        x, y = ctx.saved_tensors
        return gradient * x * y, None

    @staticmethod
    def jvp(ctx: Any, tangent: torch.Tensor, _factor: None) -> torch.Tensor:
        x, y = ctx.saved_tensors
        return tangent * y * ctx.factor + x


MODEL = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.LayerNorm(5), nn.Linear(5, 2))
MODEL.double().requires_grad_(False)  # its rounding depends on what is drawn


def pushed(function: Callable[[torch.Tensor], Any]) -> Callable[..., Any]:
    def program(x: torch.Tensor, t: torch.Tensor) -> Any:
        with fw.dual_level():
            result = function(fw.make_dual(x, t))
            return pytree.tree_map_only(torch.Tensor, lambda y: tuple(fw.unpack_dual(y)), result)

    return program


def of_parameters(x: torch.Tensor, t: torch.Tensor) -> Any:
    parameters = dict(MODEL.named_parameters())
    with fw.dual_level():
        duals = {
            name: fw.make_dual(value, torch.ones_like(value)) for name, value in parameters.items()
        }
        return tuple(fw.unpack_dual(functional_call(MODEL, duals, (x,))))


def after_the_level(x: torch.Tensor, t: torch.Tensor) -> Any:
    with fw.dual_level():
        y = fw.make_dual(x, t) * 2
        tangent = fw.unpack_dual(y).tangent
    return y.sin(), tangent.cos(), fw.unpack_dual(y).tangent is None


def twice(x: torch.Tensor, t: torch.Tensor) -> Any:
    total = 0
    for _ in range(2):
        with fw.dual_level():
            total = total + fw.unpack_dual(fw.make_dual(x, t).sin() * x).tangent
    return total


def hessian_product(x: torch.Tensor, t: torch.Tensor) -> Any:
    with fw.dual_level():
        y = fw.make_dual(x, t)
        gradient = torch.func.grad(lambda z: (z.sin() * z).sum())(y)
        return fw.unpack_dual(gradient).tangent


def in_place(x: torch.Tensor, t: torch.Tensor) -> Any:
    with fw.dual_level():
        y = torch.zeros_like(x)
        y[1:] = fw.make_dual(x, t)[1:] * 3
        y.mul_(y)
        return tuple(fw.unpack_dual(y)), fw.unpack_dual(y).primal is None


def by_functions(x: torch.Tensor, t: torch.Tensor) -> Any:
    level = fw.enter_dual_level()
    y = fw.make_dual(x, t, level=level).exp()
    found = fw.unpack_dual(y, level=level)
    fw.exit_dual_level(level=level)
    return found.tangent + 1, found.primal


PROGRAMS: dict[str, Callable[..., Any]] = {
    "operators": pushed(lambda d: (d * d).sin() + d.sum(0)),
    "model": pushed(MODEL),
    "losses": pushed(lambda d: F.mse_loss(d, d.detach() * 2) + F.softplus(d).mean()),
    "softmax": pushed(lambda d: (d @ d.t()).softmax(-1)),
    "without_tangent": pushed(lambda d: (d.detach() * 2, d.argmax(), d.float())),
    "views": pushed(lambda d: [d.t(), d[1], d.flatten()[::2] * d[0, 0]]),
    "function": pushed(lambda d: Cube.apply(d, 0.5) * d),
    "function_beside": pushed(lambda d: Cube.apply(d.detach(), 0.5) + d),
    "parameters": of_parameters,
    "after_the_level": after_the_level,
    "twice": twice,
    "hessian_product": hessian_product,
    "in_place": in_place,
    "by_functions": by_functions,
}


OF_THE_MODEL = frozenset({"model", "parameters"})

NOT_TRAINED = frozenset({"softmax", "in_place"})
"""Of these eager torch raises in a backward: tangents are written to in place."""


def leaves(tree: Any) -> list[Any]:
    return list(pytree.tree_leaves(tree))


def same(found: Any, want: Any) -> None:
    assert pytree.tree_structure(found) == pytree.tree_structure(want)
    for ours, theirs in zip(leaves(found), leaves(want), strict=True):
        if isinstance(theirs, torch.Tensor):
            torch.testing.assert_close(ours, theirs)
            assert ours.requires_grad == theirs.requires_grad
        else:
            assert ours == theirs


def trained(function: Callable[..., Any], x: torch.Tensor, t: torch.Tensor) -> Any:
    x, t = x.clone().requires_grad_(), t.clone().requires_grad_()
    found = function(x, t)
    used = [y for y in leaves(found) if isinstance(y, torch.Tensor) and y.requires_grad]
    total = sum((y * torch.linspace(1, 2, y.numel()).view(y.shape)).sum() for y in used)
    return torch.autograd.grad(total, (x, t), allow_unused=True), found


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str, dynamic: bool | None) -> None:
    function = PROGRAMS[name]
    compiled = flambeau.compile(function, fullgraph=True, dynamic=dynamic)
    dtype = torch.float64 if name in OF_THE_MODEL else torch.float32
    for rows in (4, 6):
        x, t = (torch.randn(rows, 3, dtype=dtype) for _ in range(2))
        same(compiled(x, t), function(x, t))
        if name in NOT_TRAINED:
            continue
        (theirs, want), (ours, found) = trained(function, x, t), trained(compiled, x, t)
        same(found, want)
        same(ours, theirs)
    assert fw._current_level == -1
    assert torch._C._enter_dual_level() == 0
    torch._C._exit_dual_level(level=0)
    for graph in report_of(compiled).graphs:
        assert graph.fallback is None


def prints(x: torch.Tensor, t: torch.Tensor) -> Any:
    y = x * 2
    with fw.dual_level():
        d = fw.make_dual(y, t).sin()
        print("inside")
        return fw.unpack_dual(d * d).tangent


def index(x: torch.Tensor, t: torch.Tensor) -> Any:
    with fw.dual_level():
        d = fw.make_dual(x, t)
        return fw.unpack_dual(d[(t > 100).sum() + 7]).tangent


def nested(x: torch.Tensor, t: torch.Tensor) -> Any:
    with fw.dual_level(), fw.dual_level():
        return fw.unpack_dual(fw.make_dual(x, t)).tangent


def outside(x: torch.Tensor, t: torch.Tensor) -> Any:
    return fw.make_dual(x, t)


def of_ints(x: torch.Tensor, t: torch.Tensor) -> Any:
    with fw.dual_level():
        return fw.make_dual(x.long(), t)


def left_twice(x: torch.Tensor, t: torch.Tensor) -> Any:
    with fw.dual_level():
        fw.exit_dual_level()
        return x + t


def left_open(x: torch.Tensor, t: torch.Tensor) -> Any:
    fw.enter_dual_level()
    return fw.make_dual(x, t).sin()


def branches(x: torch.Tensor, t: torch.Tensor) -> Any:
    with fw.dual_level():
        d = fw.make_dual(x, t)
        d = d.sin() if d.sum() > 0 else d.cos()
        return fw.unpack_dual(d).tangent


def outcome(function: Any, *args: torch.Tensor) -> Any:
    try:
        found = function(*args)
    except Exception as error:
        return type(error), str(error)
    finally:
        left = fw._current_level
        if left >= 0:
            fw.exit_dual_level()
    return [*leaves(found), left]


@pytest.mark.parametrize(
    "function", [prints, index, nested, outside, of_ints, left_twice, left_open, branches]
)
def test_breaks_and_errors(function: Any) -> None:
    compiled = flambeau.compile(function)
    for sign in (1, -1, 1):
        x, t = torch.rand(4, 3) * sign, torch.randn(4, 3)
        same(outcome(compiled, x, t), outcome(function, x, t))


@pytest.mark.parametrize("grad", [False, True])
def test_calls_inside_of_a_level_keep_tangents(grad: bool) -> None:
    """What was compiled outside has no tangents: such calls run eagerly."""
    weight = torch.randn(5, requires_grad=grad)
    compiled = flambeau.compile(lambda x: (x * weight).sin())
    x, tangent = torch.randn(3, 5), torch.randn(3, 5)
    for _ in range(2):
        with torch.set_grad_enabled(grad):
            torch.testing.assert_close(compiled(x), (x * weight).sin())
        with fw.dual_level(), torch.set_grad_enabled(grad):
            found = fw.unpack_dual(compiled(fw.make_dual(x, tangent))).tangent
        torch.testing.assert_close(found, (x * weight).cos() * weight * tangent)
    assert len(report_of(compiled).graphs) == 1
