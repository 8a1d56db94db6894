"""Random stacks of equal layers in training, compiled and eagerly, in float64.

A stack that differs is shrunk while it does. Of those that are compiled, the ones are counted of
which fewer layers were traced, and of which fewer were lowered.
"""

from __future__ import annotations

import copy
import linecache
import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
import torch.utils.checkpoint

import flambeau
from flambeau_autograd import pipeline
from flambeau_inductor import compile as inductor
from tools.fuzz.layers.programs import stack_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tools.fuzz.layers.programs import Stack

ROWS = 5
NEAR = 1e-11
LARGEST = 1e6
_WRITTEN = "modified by an inplace operation"


@dataclass
class Shortened:
    """How many graphs were traced with fewer layers, and lowered with fewer."""

    traced: int = 0
    lowered: int = 0

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count what is compiled."""
        extend_derived, extend_program = pipeline.extend_derived, inductor.extend_program

        def derived(*arguments: Any) -> Any:
            result = extend_derived(*arguments)
            self.traced += 1
            return result

        def program(*arguments: Any) -> Any:
            result = extend_program(*arguments)
            self.lowered += result is not None
            return result

        with (
            mock.patch.object(pipeline, "extend_derived", derived),
            mock.patch.object(inductor, "extend_program", program),
        ):
            yield


def _outcome(
    scope: dict[str, Any],
    model: torch.nn.Module,
    call: Callable[..., Any],
    seed: int,
    moved: float = 0.0,
) -> tuple[list[Any], str]:
    """What a program computes, and the error that ends it; `moved`: of an input so much larger."""
    torch.manual_seed(seed)
    x = torch.randn(ROWS, 4, 8, dtype=torch.float64)
    x = (x + moved).requires_grad_()
    shown: list[Any] = []

    def show(results: Any) -> Any:
        for each in scope["tree_leaves"](results):
            shown.append(None if each is None else each.detach().clone())
        return results

    try:
        scope["train"](model, lambda x: call(model, x), x, show)
    except RuntimeError as raised:
        # Of a backward that ends early, eager has accumulated some gradients.
        return [], str(raised).splitlines()[0]
    finally:
        torch.set_grad_enabled(True)
    state = torch.get_rng_state()
    leaves = [x, *model.parameters()]
    gradients = [None if p.grad is None else p.grad.clone() for p in leaves]
    held = [p.detach().clone() for p in (*leaves, *model.buffers())]
    return [*shown, *gradients, *held, state], ""


def difference(
    stack: Stack, seed: int, *, counts: Shortened | None = None, **options: Any
) -> str | None:
    """How a stack differs from eager; None if it does not, or is no program."""
    text, name = stack.text(), f"<layers {seed}>"
    linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name
    scope: dict[str, Any] = {}
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                exec(compile(text, name, "exec"), scope)
                torch.manual_seed(seed)
                model = scope["Model"]()
                theirs = _outcome(scope, copy.deepcopy(model), scope["program"], seed)
            except Exception:
                return None
            try:
                with (counts or Shortened()).counting():
                    compiled = flambeau.compile(scope["program"], **options)
                    ours = _outcome(scope, copy.deepcopy(model), compiled, seed)
                text = _compared(ours, theirs)
                if text is None:
                    return None
                # Some stacks amplify the last place of a number beyond any fixed tolerance.
                near = _outcome(scope, copy.deepcopy(model), scope["program"], seed, NEAR)
                return _compared(ours, theirs, near)
            except Exception as error:
                lines = str(error).splitlines()
                return f"{type(error).__name__}: {lines[0] if lines else ''}"
    finally:
        torch.set_default_dtype(default)


def _compared(
    ours: tuple[list[Any], str], theirs: tuple[list[Any], str], near: Any = None
) -> str | None:
    """The first difference beyond rounding, as a text; `near`: what eager computes of an input that
    differs by rounding.
    """
    (mine, my_error), (others, other_error) = ours, theirs
    if _WRITTEN in my_error and not other_error:
        return None  # a backward that computes results again reads more inputs than eager's
    if other_error and _WRITTEN not in other_error:
        return None  # no program
    if bool(my_error) != bool(other_error):
        return f"error {my_error!r}, not {other_error!r}"
    if len(mine) != len(others):
        return f"{len(mine)} values, not {len(others)}"
    for number, (one, another) in enumerate(zip(mine, others, strict=True)):
        if (one is None) != (another is None):
            return f"value {number}: {one}, not {another}"
        if one is None or another is None:
            continue
        if another.is_floating_point() and not bool((another.abs() < LARGEST).all()):
            return None  # no number of a net that is trained
        least = 1e-8
        if near is not None and another.is_floating_point() and another.numel():
            least = max(least, 10 * float((near[0][number] - another).abs().max()))
        try:
            torch.testing.assert_close(one, another, rtol=1e-6, atol=least, equal_nan=True)
        except AssertionError as error:
            return f"value {number} of {len(mine)}: {' '.join(str(error).split())}"
    return None


def check(seed: int, *, counts: Shortened | None = None, **options: Any) -> str | None:
    """The stack of this seed, shrunk, and how it differs; None if it does not."""
    stack = stack_of(seed)
    text = difference(stack, seed, counts=counts, **options)
    if text is None:
        return None
    progress = True
    while progress:
        progress = False
        for smaller in stack.smaller():
            shorter = difference(smaller, seed, **options)
            if shorter is not None:
                stack, text, progress = smaller, shorter, True
                break
    return f"seed {seed}: {text}\n\n{stack.text()}"


def report(stacks: int, seed: int, **options: Any) -> int:
    """Print what differs; 1 if anything does. No graph is read from the cache."""
    if options.get("backend", "inductor") == "inductor":
        options["options"] = {"graph_cache": False}
    failures = traced = lowered = 0
    for each in range(seed, seed + stacks):
        counts = Shortened()
        text = check(each, counts=counts, **options)
        traced += counts.traced > 0
        lowered += counts.lowered > 0
        if text is not None:
            failures += 1
            print(text, flush=True)
    print(f"{stacks} stacks, {failures} differ; {traced} traced shortened, {lowered} lowered so")
    return 1 if failures else 0
