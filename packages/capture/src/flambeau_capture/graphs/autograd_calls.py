"""Functions of autograd that captured graphs call.

Reverse-mode differentiation of a function of flat tensors, as torch.func.vjp and jacrev have it,
on functorch's own levels.

    results, gradients = pull_back(f, (x, w), wanted=(0,), cotangents=(g,))      # g @ df/dx

torch.func's functions do the same, but the first call of any of them imports torch._dynamo.

Inference mode as a captured graph enters and leaves it.

    with torch.inference_mode():          enter_inference_mode(True)
        y = x * 2                   ->    y = x * 2
                                          leave_inference_mode()

torch has no setter of this mode, only guards that are to be left in the order in which they were
entered. Those that a graph holds are kept for it here, by thread; `leaving_after_errors` leaves
what a graph that raises has entered. So it is with a level of forward-mode differentiation, which
tracers see through.

Tensors and nodes of autograd that the program hangs hooks on, as a captured graph has them.

    y = x * 2                               y = x * 2; hook_point(y); z = y.sin()
    y.register_hook(print)          ->
    z = y.sin()                             and after the graph: Tensor.register_hook(y, print)

A hook sees the whole gradient of its tensor, so a compiler must not hide in one function what makes
the tensor and what uses it: `hook_point` is where it cuts the graph. The hooks themselves are
Python functions of the program's, which backward calls as they are. They are registered when the
graph has run, in the program's order: backward comes later.

Calls that raise after they have written to a tensor, and whose error the program handles.

    try:
        y.add_(1)            # an inference tensor, outside inference mode: torch adds, then raises
    except RuntimeError:     ->      failing_add_(y)
        ...

What was written stays written.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.graph import register_multi_grad_hook
from torch.nn.modules._functions import BackwardHookFunction
from torch.utils.hooks import RemovableHandle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Flat = Callable[..., tuple[torch.Tensor, ...]]


_functorch = torch._C._functorch
_NO_HOOKS = (
    "torch.func.{grad, vjp, jacrev, hessian} don't yet support saved tensor hooks. "
    "Please open an issue with your use case."
)


def pull_back(
    function: Flat,
    tensors: Sequence[torch.Tensor],
    wanted: Sequence[int],
    cotangents: Sequence[torch.Tensor] | None,
) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
    """The function's results, and the gradients by the `wanted` tensors.

    The cotangents are of the first results; None stands for a one, for a single scalar. Raises
    RuntimeError where that is none.
    """
    with _level() as level:
        results, inputs = _run(function, tensors, wanted, level)
        count = 1 if cotangents is None else len(cotangents)
        if cotangents is None and results[0].ndim:
            raise RuntimeError(
                "grad_and_value(f)(*args): Expected f(*args) to return a scalar Tensor, "
                "got tensor with "
                f"{results[0].ndim} dims. Maybe you wanted to use the vjp or jacrev APIs instead?"
            )
        gradients = _gradients(results[:count], inputs, cotangents)
        return _unwrapped(results, level), _unwrapped(gradients, level)


def jacobian(
    function: Flat,
    tensors: Sequence[torch.Tensor],
    wanted: Sequence[int],
    count: int,
    chunk_size: int | None,
) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
    """The results, and the derivatives of the first `count` of them by the `wanted` tensors.

    One batch of cotangents pulls back all results at once, as eager's does: each derivative is a
    view of what its input got, whose layout depends on all of them.
    """
    with _level() as level:
        results, inputs = _run(function, tensors, wanted, level)
        differentiated = results[:count]
        sizes = [result.numel() for result in differentiated]

        def pull(*cotangents: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return _gradients(differentiated, inputs, cotangents)

        batched = torch.vmap(pull, chunk_size=chunk_size)(*_standard_basis(differentiated, sizes))
        parts = [gradient.split(sizes) for gradient in batched]
        found = [
            part[at].view(*result.shape, *given.shape)
            for at, result in enumerate(differentiated)
            for part, given in zip(parts, inputs, strict=True)
        ]
        return _unwrapped(results, level), _unwrapped(found, level)


def _standard_basis(results: Sequence[torch.Tensor], sizes: Sequence[int]) -> list[torch.Tensor]:
    """A batch of cotangents for each result: of all their elements, each is one once."""
    total, start = sum(sizes), 0
    basis: list[torch.Tensor] = []
    for result, size in zip(results, sizes, strict=True):
        rows = torch.eye(total, dtype=result.dtype, device=result.device)
        basis.append(rows.narrow(1, start, size).contiguous().view(total, *result.shape))
        start += size
    return basis


@contextmanager
def _level() -> Iterator[int]:
    """A level of differentiation, with grad mode on whatever it is outside."""
    with torch.autograd.graph.disable_saved_tensors_hooks(_NO_HOOKS):
        level = _functorch._grad_increment_nesting()
        try:
            with torch.enable_grad():
                yield level
        finally:
            _functorch._grad_decrement_nesting()


def _run(
    function: Flat, tensors: Sequence[torch.Tensor], wanted: Sequence[int], level: int
) -> tuple[tuple[torch.Tensor, ...], list[torch.Tensor]]:
    """The results on tensors of this level, and the tensors differentiated by."""
    wrapped = [_functorch._wrap_for_grad(tensor, level) for tensor in tensors]
    inputs = [wrapped[at] for at in wanted]
    allowed = _functorch.get_inplace_requires_grad_allowed()
    _functorch.set_inplace_requires_grad_allowed(True)
    try:
        for tensor in inputs:
            tensor.requires_grad_()
    finally:
        _functorch.set_inplace_requires_grad_allowed(allowed)
    return tuple(function(*wrapped)), inputs


def _gradients(
    results: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    cotangents: Sequence[torch.Tensor] | None,
) -> tuple[torch.Tensor, ...]:
    """Gradients that are differentiable themselves; zeros where there is no path."""
    given = [None] * len(results) if cotangents is None else list(cotangents)
    pairs = [(r, g) for r, g in zip(results, given, strict=True) if r.requires_grad]
    if not pairs:
        return tuple(torch.zeros_like(tensor) for tensor in inputs)
    found = torch.autograd.grad(
        [result for result, _ in pairs],
        inputs,
        [cotangent for _, cotangent in pairs],
        retain_graph=True,
        create_graph=True,
        allow_unused=True,
    )
    return tuple(
        torch.zeros_like(tensor) if gradient is None else gradient
        for gradient, tensor in zip(found, inputs, strict=True)
    )


def _unwrapped(tensors: Sequence[torch.Tensor], level: int) -> tuple[torch.Tensor, ...]:
    return tuple(_functorch._unwrap_for_grad(tensor, level) for tensor in tensors)


# ---------------------------------------------------------------- inference mode


class _Entered(threading.local):
    """The guards that this thread's graphs have entered, the innermost last."""

    def __init__(self) -> None:
        self.guards: list[Any] = []


_ENTERED = _Entered()


def enter_inference_mode(enabled: bool) -> None:
    """Turn inference mode on, or off, until the matching `leave_inference_mode`."""
    _ENTERED.guards.append(torch._C._InferenceMode(enabled))  # which enters it


def leave_inference_mode() -> None:
    """Go back to the modes that were on when the innermost `enter_inference_mode` was called."""
    _ENTERED.guards.pop().__exit__(None, None, None)


class _Level:
    """A level of forward-mode differentiation, which is entered when this is made."""

    def __init__(self) -> None:
        self._level = torch._C._enter_dual_level()

    def __exit__(self, *error: object) -> None:
        torch._C._exit_dual_level(level=self._level)


def enter_forward_level() -> None:
    """Enter a level of forward-mode differentiation, until the matching `leave_forward_level`."""
    _ENTERED.guards.append(_Level())


def leave_forward_level() -> None:
    """Leave it: what was dual there has no tangent any more."""
    _ENTERED.guards.pop().__exit__(None, None, None)


@contextmanager
def leaving_inference_modes() -> Iterator[None]:
    """A block that leaves what is entered in it."""
    depth = len(_ENTERED.guards)
    try:
        yield
    finally:
        while len(_ENTERED.guards) > depth:
            leave_inference_mode()


def leaving_after_errors(graph: Callable[..., Any]) -> Callable[..., Any]:
    """`graph`, a call of which that raises has left what it entered."""

    def run(*args: Any) -> Any:
        depth = len(_ENTERED.guards)
        try:
            return graph(*args)
        except BaseException:
            while len(_ENTERED.guards) > depth:
                leave_inference_mode()
            raise

    return run


ENTERING = frozenset({enter_inference_mode, enter_forward_level})
"""What a graph that raises may have entered."""

# ---------------------------------------------------------------- hooks


def hook_point(tensor: torch.Tensor) -> None:
    """Nothing: the tensor is one that hooks see the gradient of."""


def pass_hooks(*tensors: torch.Tensor) -> Any:
    """The identity, by a node of autograd's own that modules' backward hooks are registered on."""
    return BackwardHookFunction.apply(*tensors)


def register_on_node(tensor: torch.Tensor, method: str, hook: Any) -> Any:
    """Register a hook on the node that made a tensor; `method` names the node's method."""
    return getattr(tensor.grad_fn, method)(hook)


def register_all(tensors: tuple[torch.Tensor, ...], hook: Any, mode: Any) -> Any:
    """Register a hook on the gradients of several tensors."""
    return register_multi_grad_hook(tensors, hook, mode=mode)


class _Hooks(dict[int, Any]):
    """What a handle can refer to weakly."""


def removed_handle() -> RemovableHandle:
    """A handle whose hook has been removed."""
    return RemovableHandle(_Hooks())


# ---------------------------------------------------------------- failing call


@dataclass(frozen=True, eq=False)
class FailingCall:
    """`function`, whose RuntimeError has been handled when it was captured."""

    function: Callable[..., Any]

    @property
    def __name__(self) -> str:
        return f"failing_{getattr(self.function, '__name__', 'call')}"

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        try:
            self.function(*args, **kwargs)
        except RuntimeError:
            return
