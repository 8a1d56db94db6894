"""Frames that draw the numbers of hooks from torch's counter: an entry serves other states of the
counter only if nothing depends on the numbers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules import module as of_modules
from torch.utils.hooks import RemovableHandle

import flambeau
from flambeau_capture.compiled import state_of

Program = Callable[[nn.Module, torch.Tensor, dict[str, Any]], Any]


def double(module: Any, args: Any, output: torch.Tensor) -> torch.Tensor:
    return output * 2


register_after: Any = of_modules.register_module_forward_hook
register_before: Any = of_modules.register_module_forward_pre_hook


def drawn(module: nn.Module) -> int:
    """The number of a hook that is registered and removed."""
    handle = module.register_forward_hook(double)
    handle.remove()
    return handle.id


class Box:
    number = 0


def returns(module: nn.Module, x: torch.Tensor, kept: dict[str, Any]) -> Any:
    return module(x), drawn(module)


def multiplies(module: nn.Module, x: torch.Tensor, kept: dict[str, Any]) -> Any:
    return module(x) * drawn(module)


def branches(module: nn.Module, x: torch.Tensor, kept: dict[str, Any]) -> Any:
    return module(x) + 1 if drawn(module) % 2 else module(x) - 1


def writes_text(module: nn.Module, x: torch.Tensor, kept: dict[str, Any]) -> Any:
    kept["text"] = f"hook {drawn(module)}"
    return module(x)


def keeps_derived(module: nn.Module, x: torch.Tensor, kept: dict[str, Any]) -> Any:
    kept["derived"] = (drawn(module) * 2 + 1, [5])
    return module(x)


def keeps_key(module: nn.Module, x: torch.Tensor, kept: dict[str, Any]) -> Any:
    kept.setdefault("keys", {})[drawn(module)] = 1
    return module(x)


def keeps_partial(module: nn.Module, x: torch.Tensor, kept: dict[str, Any]) -> Any:
    kept["partial"] = functools.partial(max, drawn(module)).args
    return module(x)


def sets_attribute(module: nn.Module, x: torch.Tensor, kept: dict[str, Any]) -> Any:
    box = Box()
    box.number = drawn(module)
    return module(x), vars(box)


def reads_keys(module: nn.Module, x: torch.Tensor, kept: dict[str, Any]) -> Any:
    with module.register_forward_hook(double):
        kept["text"] = str(max(module._forward_hooks))
    return module(x)


def reads_counter(module: nn.Module, x: torch.Tensor, kept: dict[str, Any]) -> Any:
    before = RemovableHandle.next_id
    drawn(module)
    return module(x), before, RemovableHandle.next_id


def sets_counter(module: nn.Module, x: torch.Tensor, kept: dict[str, Any]) -> Any:
    RemovableHandle.next_id = 7000
    return module(x)


def keeps_one_of_two(module: nn.Module, x: torch.Tensor, kept: dict[str, Any]) -> Any:
    first = module.register_forward_hook(double)
    kept["hook"] = module.register_forward_hook(double).id
    first.remove()
    return module(x)


SHOWING = [
    returns, multiplies, branches, writes_text, keeps_derived, keeps_key, keeps_partial,
    sets_attribute, reads_keys, reads_counter, sets_counter, keeps_one_of_two,
]  # fmt: skip


def remove_in_other_order(module: nn.Module, x: torch.Tensor, kept: dict[str, Any]) -> Any:
    handles = [module.register_forward_hook(double, prepend=bool(n % 2)) for n in range(3)]
    handles.pop(1).remove()
    y = module(x)
    for handle in reversed(handles):
        handle.remove()
    return y + module(x)


def hook_in_block(module: nn.Module, x: torch.Tensor, kept: dict[str, Any]) -> Any:
    with module.register_forward_hook(double):
        return module(x)


def hook_all_modules(module: nn.Module, x: torch.Tensor, kept: dict[str, Any]) -> Any:
    before = register_before(lambda module, args: (args[0] + 1,))
    after = register_after(lambda module, args, output: output + 1)
    try:
        return module(x)
    finally:
        after.remove()
        before.remove()


def run(program: Any) -> list[Any]:
    """What calls give while the counter grows between them."""
    torch.manual_seed(0)
    module, kept, found = nn.Linear(4, 4), dict[str, Any](), []
    RemovableHandle.next_id = 1000
    for step in (0, 1, 0, 2):
        RemovableHandle.next_id += step
        results = program(module, torch.randn(3, 4), kept)
        results = results if isinstance(results, tuple) else (results,)
        found += [each.tolist() if isinstance(each, torch.Tensor) else each for each in results]
        found += [str(kept), list(module._forward_hooks), RemovableHandle.next_id]
    return found


@pytest.fixture(autouse=True)
def counter() -> Any:
    before = RemovableHandle.next_id
    yield
    RemovableHandle.next_id = max(before, RemovableHandle.next_id)


def is_same(found: Any, expected: Any) -> bool:
    return all(
        torch.allclose(torch.tensor(one), torch.tensor(other), atol=1e-5, rtol=1e-5)
        if isinstance(one, list) and one and isinstance(one[0], list)
        else one == other
        for one, other in zip(found, expected, strict=True)
    )


@pytest.mark.parametrize("program", SHOWING)
def test_numbers_that_something_depends_on_are_eagers(program: Program) -> None:
    compiled = flambeau.compile(program)
    assert is_same(run(compiled), run(program))


@pytest.mark.parametrize("program", [remove_in_other_order, hook_in_block, hook_all_modules])
def test_numbers_that_nothing_depends_on_cost_no_compile(program: Program) -> None:
    compiled = flambeau.compile(program, fullgraph=True)
    assert is_same(run(compiled), run(program))
    assert len(state_of(compiled).entries) == 1


def test_hooks_of_all_modules_that_a_frame_registers_run() -> None:
    module = nn.Linear(4, 4)

    def program(x: torch.Tensor) -> torch.Tensor:
        register_after(double)
        return module(x)

    try:
        x = torch.randn(3, 4)
        torch.testing.assert_close(
            flambeau.compile(program)(x), x @ module.weight.T * 2 + module.bias * 2
        )
        assert len(of_modules._global_forward_hooks) == 1
    finally:
        of_modules._global_forward_hooks.clear()


def test_a_number_of_a_class_of_torch_is_read_at_each_call() -> None:
    compiled = flambeau.compile(lambda x: x * RemovableHandle.next_id)
    for number in (1000, 1001, 1003):
        RemovableHandle.next_id = number
        torch.testing.assert_close(compiled(x := torch.randn(4)), x * number)
