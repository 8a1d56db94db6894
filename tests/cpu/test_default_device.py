"""Default devices and dtypes: set inside a compiled function, as blocks, decorators and calls, and
around it.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils._device import set_device

import flambeau

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BACKENDS = ("eager", "aot_eager", "inductor")


def blocks(x: torch.Tensor) -> Any:
    with torch.device("meta"):
        y = torch.ones(3, 4)
        literal = torch.tensor([1.0])
        asked = torch.get_default_device()
        product = y @ y.T
        named = torch.zeros(2, device="cpu")
        with torch.device("cpu"):
            inner = torch.arange(3)
    made = torch.ones(3, 3)
    return y, product, literal, named, inner, asked, made, x + 1, torch.get_default_device()


def left_by_an_error(x: torch.Tensor) -> Any:
    try:
        with torch.device("meta"):
            y = torch.ones(3)
            raise ValueError
    except ValueError:
        return y, torch.ones(3), x + 1


@set_device("cpu")
def decorated(x: torch.Tensor) -> Any:
    return torch.ones(3) + x


def set_and_left(x: torch.Tensor) -> Any:
    torch.set_default_device("meta")
    return torch.rand(3), x + 1, torch.get_default_device()


def set_twice(x: torch.Tensor) -> Any:
    torch.set_default_device("meta")
    y = torch.ones(3)
    torch.set_default_device(None)
    return y, torch.ones(3) + x


def dtype_set(x: torch.Tensor) -> Any:
    torch.set_default_dtype(torch.float64)
    y, literal, quotient = torch.ones(3) + x, torch.tensor([1.0]), torch.arange(3) / 2
    torch.set_default_dtype(torch.float32)
    return y, literal, quotient, torch.arange(3) / 2, torch.get_default_dtype()


def dtype_left(x: torch.Tensor) -> Any:
    torch.set_default_dtype(torch.float64)
    return torch.arange(3) / 2, x * torch.ones(3)


def reading(x: torch.Tensor) -> Any:
    made = torch.ones(2), torch.tensor([1.5]), torch.arange(3) / 2, torch.zeros_like(x)
    return *made, x + 1, torch.get_default_device(), torch.get_default_dtype()


@contextlib.contextmanager
def double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def shown(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        contents = None if value.is_meta else value.tolist()
        return value.device, value.dtype, value.stride(), contents
    return [shown(item) for item in value] if isinstance(value, (tuple, list)) else value


def outcome(program: Callable[..., Any], surroundings: Callable[[], Any]) -> Any:
    """What a call gives, and the defaults that it leaves; which are then put back."""
    x = torch.ones(3, 3, device="cpu")
    with surroundings():
        result = shown(program(x))
        left = torch.get_default_device(), torch.get_default_dtype()
        modes = torch._C._len_torch_function_stack()
        torch.set_default_device(None)
        torch.set_default_dtype(torch.float32)
    return result, left, modes


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", [
    blocks, left_by_an_error, decorated, dtype_set, dtype_left, reading, set_and_left, set_twice,
], ids=lambda program: program.__name__)  # fmt: skip
def test_defaults_in_one_graph(program: Callable[..., Any], backend: str) -> None:
    compiled = flambeau.compile(program, backend=backend, fullgraph=True)
    surroundings: list[Any] = [contextlib.nullcontext, double, contextlib.nullcontext]
    if program not in (set_and_left, set_twice, dtype_left, dtype_set):
        surroundings += [lambda: torch.device("meta"), lambda: torch.device("cpu")]
    for around in surroundings:
        if program is set_and_left:
            got, want = outcome(compiled, around), outcome(program, around)
            assert got[1:] == want[1:] and got[0][1:] == want[0][1:]
        else:
            assert outcome(compiled, around) == outcome(program, around)


def broken_inside(x: torch.Tensor) -> Any:
    with torch.device("meta"):
        y = torch.ones(3)
        torch._dynamo.graph_break()
        z = torch.ones(2)
    return y, z, x + torch.ones(3), torch.get_default_device()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_break_inside_a_block(backend: str) -> None:
    compiled = flambeau.compile(broken_inside, backend=backend)
    for _ in range(2):
        plain = contextlib.nullcontext
        assert outcome(compiled, plain) == outcome(broken_inside, plain)
