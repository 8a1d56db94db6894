"""States of torch that a program enters, sets, reads and leaves: inside the compiled function and
around it.
"""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

import flambeau
from flambeau_capture import torch_state
from tests.worlds import World, compare, kinds

if TYPE_CHECKING:
    from collections.abc import Callable


def x34() -> torch.Tensor:
    return torch.randn(3, 4, requires_grad=True)


WHOLE: dict[str, Callable[[torch.Tensor], Any]] = {}
BROKEN: dict[str, Callable[[torch.Tensor], Any]] = {}


def whole(program: Callable[[torch.Tensor], Any]) -> Callable[[torch.Tensor], Any]:
    """A program that is one graph."""
    WHOLE[program.__name__] = program
    return program


def broken(program: Callable[[torch.Tensor], Any]) -> Callable[[torch.Tensor], Any]:
    """A program that sets what no graph may set in its midst."""
    BROKEN[program.__name__] = program
    return program


# Grad mode
# ----------------------------------------------------------------------------


@whole
def no_grad_inside(x: torch.Tensor) -> Any:
    with torch.no_grad():
        y = x * 2
        with torch.enable_grad():
            z = x * 3
    return y, z, x + 1


@whole
def no_grad_as_decorator(x: torch.Tensor) -> Any:
    @torch.no_grad()
    def double(t: torch.Tensor) -> torch.Tensor:
        return t * 2

    return double(x), x * 3, torch.is_grad_enabled()


@whole
def grad_mode_left_changed(x: torch.Tensor) -> Any:
    torch.set_grad_enabled(False)
    return x * 2


@whole
def grad_mode_left_by_an_own_context(x: torch.Tensor) -> Any:
    with Quiet() as quiet:
        y = x * 2
    return y, quiet.before, x * 2


class Quiet:
    def __enter__(self) -> Quiet:
        self.before = torch.is_grad_enabled()
        torch.set_grad_enabled(False)
        return self

    def __exit__(self, *error: object) -> None:
        torch.set_grad_enabled(self.before)


@whole
def inference_inside(x: torch.Tensor) -> Any:
    with torch.inference_mode():
        y = x.detach() * 2
    return y.is_inference(), y, x * 2


@whole
@torch.inference_mode()
def inference_as_decorator(x: torch.Tensor) -> Any:
    return x * 2, torch.is_inference_mode_enabled()


# Autocast
# ----------------------------------------------------------------------------


@whole
def autocast_nested(x: torch.Tensor) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ x.t()
        with torch.autocast("cpu", enabled=False):
            z = y.float() @ x
        s = torch.softmax(y, -1)
        n = F.layer_norm(y, (y.shape[-1],))
        c = torch.cat([y, y.float()])
    return y, z, s, n, c, x @ x.t()


@whole
def autocast_dtypes(x: torch.Tensor) -> Any:
    with torch.autocast("cpu", dtype=torch.float16):
        y = F.linear(x, x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            z = F.linear(x, x)
        return y, z, torch.get_autocast_dtype("cpu"), torch.is_autocast_enabled("cpu")


@whole
@torch.autocast("cpu", dtype=torch.bfloat16)
def autocast_as_decorator(x: torch.Tensor) -> Any:
    return x @ x.t(), x.sum()


@whole
def cudnn_flags(x: torch.Tensor) -> Any:
    y = x * 2
    with torch.backends.cudnn.flags(enabled=False, deterministic=True):
        inside = torch.backends.cudnn.enabled, torch.backends.cudnn.deterministic
        z = y.sin()
    return z, inside, torch.backends.cudnn.enabled, torch.backends.cudnn.deterministic


# Kernels' settings
# ----------------------------------------------------------------------------


@whole
def attention_by_one_kernel(x: torch.Tensor) -> Any:
    q = x[None, None]
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(q, q, q)


@whole
def settings_that_are_read(x: torch.Tensor) -> Any:
    deterministic = torch.are_deterministic_algorithms_enabled()
    return x + 1, deterministic, torch.get_float32_matmul_precision(), torch.get_default_dtype()


@broken
def deterministic_set(x: torch.Tensor) -> Any:
    torch.use_deterministic_algorithms(True)
    y = x + 1
    torch.use_deterministic_algorithms(False)
    return y


@broken
def precision_set(x: torch.Tensor) -> Any:
    torch.set_float32_matmul_precision("high")
    y = x @ x.t()
    torch.set_float32_matmul_precision("highest")
    return y


@whole
def default_dtype_set(x: torch.Tensor) -> Any:
    torch.set_default_dtype(torch.float64)
    y = torch.ones(3) + x[0, :3]
    torch.set_default_dtype(torch.float32)
    return y, torch.ones(3)


@whole
def device_as_context(x: torch.Tensor) -> Any:
    with torch.device("meta"):
        y = torch.ones(3, 4)
    return y.device, x + torch.ones(3, 4)


# Random numbers
# ----------------------------------------------------------------------------


@whole
def drawn(x: torch.Tensor) -> Any:
    return (
        F.dropout(x, 0.5),
        torch.rand(3),
        torch.randn_like(x),
        torch.randperm(5),
        F.rrelu(x, training=True),
    )


@whole
def seeded(x: torch.Tensor) -> Any:
    torch.manual_seed(3)
    return torch.rand(3) + x[0, :3], F.dropout(x, 0.5)


@whole
def state_set_back(x: torch.Tensor) -> Any:
    state = torch.get_rng_state()
    a = torch.rand(3)
    torch.set_rng_state(state)
    return a, torch.rand(3), x * 2


@whole
def forked(x: torch.Tensor) -> Any:
    with torch.random.fork_rng():
        a = torch.rand(3)
    return a, torch.rand(3), x * 2


@whole
def own_generator(x: torch.Tensor) -> Any:
    generator = torch.Generator().manual_seed(4)
    return torch.rand(3, generator=generator) + x[0, :3], x.clone().normal_(generator=generator)


# Marks for profilers
# ----------------------------------------------------------------------------


@whole
def record_function(x: torch.Tensor) -> Any:
    with torch.profiler.record_function("here"):
        return x + 1


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("name", WHOLE)
def test_one_graph(name: str, backend: str) -> None:
    def make() -> World:
        torch.set_grad_enabled(True)
        return World(WHOLE[name], lambda call: (x34(),))

    try:
        compiled = compare(make, backend=backend, fullgraph=True)
    finally:
        torch.set_grad_enabled(True)
    assert set(kinds(compiled)) <= {"capture", "recompile"}


@pytest.mark.parametrize("name", BROKEN)
def test_set_between_graphs(name: str) -> None:
    compiled = compare(lambda: World(BROKEN[name], lambda call: (x34(),)), backend="eager")
    assert "break" in kinds(compiled)


# Around the call
# ----------------------------------------------------------------------------


def several(x: torch.Tensor) -> Any:
    made = torch.ones(4)
    return x @ made, made, torch.is_grad_enabled(), (x @ x.t()).sum()


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_states_around_the_call_are_guarded(backend: str) -> None:
    compiled = flambeau.compile(several, backend=backend, fullgraph=True)
    surroundings = [
        contextlib.nullcontext,
        torch.no_grad,
        torch.inference_mode,
        lambda: torch.autocast("cpu", dtype=torch.bfloat16),
        lambda: torch.device("cpu"),
        contextlib.nullcontext,
    ]
    x = x34()
    for _ in range(2):
        for around in surroundings:
            with around():
                got, want = compiled(x), several(x)
                # A fused kernel does not round to bfloat16 between two operators.
                tolerance = 1e-2 if torch.is_autocast_enabled("cpu") else 1e-5
            for mine, other in zip(got, want, strict=True):
                if isinstance(other, torch.Tensor):
                    assert mine.dtype == other.dtype
                    assert mine.requires_grad == other.requires_grad
                    torch.testing.assert_close(
                        mine.detach(), other.detach(), rtol=tolerance, atol=tolerance
                    )
                else:
                    assert mine == other
    assert len(kinds(compiled)) == 5


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_the_kernels_of_attention_around_the_call_are_guarded(backend: str) -> None:
    def attend(x: torch.Tensor) -> Any:
        return F.scaled_dot_product_attention(x, x, x)

    compiled = flambeau.compile(attend, backend=backend, fullgraph=True)
    x = torch.randn(2, 2, 5, 8)
    for _ in range(2):
        for kernels in (
            [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH],
            [SDPBackend.MATH],
            [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH],
        ):
            with sdpa_kernel(kernels):
                torch.testing.assert_close(compiled(x), attend(x))
    assert kinds(compiled) == ["capture", "recompile", "recompile"]


def test_an_order_of_kernels_set_inside_is_restored() -> None:
    before = torch._C._get_sdp_priority_order()

    def attend(x: torch.Tensor) -> Any:
        with sdpa_kernel([SDPBackend.MATH, SDPBackend.FLASH_ATTENTION], set_priority=True):
            y = F.scaled_dot_product_attention(x, x, x)
            order = torch._C._get_sdp_priority_order()
        return y, order

    compiled = flambeau.compile(attend, backend="eager", fullgraph=True)
    x = torch.randn(2, 2, 5, 8)
    for _ in range(2):
        got, want = compiled(x), attend(x)
        torch.testing.assert_close(got[0], want[0])
        assert got[1] == want[1]
        assert torch._C._get_sdp_priority_order() == before
    assert kinds(compiled) == ["capture"]


def test_an_order_of_kernels_that_torch_sets_is_neither_guarded_nor_restored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on a Hopper GPU, where torch orders the kernels once, when it first chooses one."""
    before = torch._C._get_sdp_priority_order()
    of_the_gpu = [before[1], before[0], *before[2:]]
    order_once = functools.cache(lambda: torch._C._set_sdp_priority_order(of_the_gpu))
    monkeypatch.setattr(torch_state, "_have_kernels_ordered", order_once)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)

    def attend(x: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(x, x, x)

    def backend(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Any:
        order_once()
        return gm.forward

    compiled = flambeau.compile(attend, backend=backend, fullgraph=True)
    x = torch.randn(2, 2, 5, 8)
    try:
        for _ in range(3):
            torch.testing.assert_close(compiled(x), attend(x))
        assert kinds(compiled) == ["capture"]
        assert torch._C._get_sdp_priority_order() == of_the_gpu
    finally:
        torch._C._set_sdp_priority_order(before)


class Counting(TorchFunctionMode):
    """Doubles sines, and counts."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += 1
        result = func(*args, **(kwargs or {}))
        return result * 2 if func is torch.sin else result


def test_modes_of_the_program_see_what_eager_shows_them() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x) + 1

    compiled = flambeau.compile(program, backend="eager")
    x = torch.randn(3)
    counts = []
    for function in (program, compiled, program, compiled):
        with Counting() as mode:
            out = function(x)
        counts.append(mode.calls)
        torch.testing.assert_close(out, torch.sin(x) * 2 + 1)
        torch.testing.assert_close(function(x), torch.sin(x) + 1)
    assert counts == [counts[0]] * 4


def test_a_mode_entered_inside() -> None:
    def program(x: torch.Tensor) -> Any:
        with Counting() as mode:
            y = torch.sin(x)
        return y + 1, mode.calls

    compare(lambda: World(program, lambda call: (torch.randn(3),)), backend="eager")
