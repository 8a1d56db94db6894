"""A program and what it can change, made anew twice: called compiled in one world, eagerly in the
other, and both compared.

def make():
    net = Linear(4, 3)
    return World(lambda x: net(x), lambda call: (randn(2, 4),), lambda: net)

compare(make)                       calls it several times each way; returns the compiled callable
                                    for a look at its events
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

import flambeau
import flambeau_capture
from tests.same import same

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass
class World:
    """`program(*arguments(call))` for call 0, 1, ...; `seen()` gives what a user could look at
    afterwards.
    """

    program: Callable[..., Any]
    arguments: Callable[[int], tuple[Any, ...]]
    seen: Callable[[], Any] = lambda: None


def compare(
    make: Callable[[], World], *, calls: int = 3, backward: bool = False, **options: Any
) -> Any:
    """Both worlds must show the same: results, exceptions, gradients, the random generator, and
    what is `seen` at the end.
    """
    theirs = _run(make, calls, backward, None)
    ours = _run(make, calls, backward, options)
    same(ours[1], theirs[1], "call")
    same(ours[2], theirs[2], "seen")
    return ours[0]


def _run(
    make: Callable[[], World], calls: int, backward: bool, options: dict[str, Any] | None
) -> tuple[Any, Any, Any]:
    torch.manual_seed(0)
    world = make()
    call = world.program if options is None else flambeau.compile(world.program, **options)
    shown = []
    for number in range(calls):
        torch.manual_seed(number + 1)
        arguments = world.arguments(number)
        try:
            result = call(*arguments)
        except flambeau_capture.CaptureError:
            raise
        except Exception as error:
            result = f"{type(error).__name__}: {error}"
        if backward:
            out = result[0] if isinstance(result, tuple) else result
            out.sum().backward()
        shown.append((result, arguments if backward else None, torch.get_rng_state()))
        shown.append((torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")))
    return call, shown, world.seen()


def kinds(compiled: Any, since: int = 0) -> list[str]:
    """What happened to a compiled callable: "capture", "recompile", "break", "limit". An entry that
    is read from the disk counts as the capture or recompilation that it replaces.
    """
    replaced = {False: "capture", True: "recompile"}
    return [
        replaced[bool(event.failures)] if event.kind == "stored" else event.kind
        for event in flambeau_capture.state_of(compiled).events[since:]
    ]
