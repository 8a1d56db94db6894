"""Calls of the model outside training, and what becomes of their outputs."""

from __future__ import annotations

import contextlib
import copy
import gc
from typing import TYPE_CHECKING, Any

import torch

from tools.fuzz.launches.models import Embedded
from tools.fuzz.launches.side import DEVICE, copies, first, input_of, loss_of, tensors

if TYPE_CHECKING:
    from random import Random

    from tools.fuzz.launches.side import Results, Side

_GRAD_MODES = {"grad": torch.enable_grad, "none": torch.no_grad, "inference": torch.inference_mode}


def forward(side: Side, x: torch.Tensor, grad_mode: str = "none") -> Any:
    """The model's result in a grad mode."""
    with _GRAD_MODES[grad_mode]():
        return side.call(x)


def infer(side: Side, random: Random) -> Results:
    """One call on any input."""
    grad_mode = random.choice(["none", "none", "inference", "grad"])
    return copies(forward(side, input_of(side, random), grad_mode))


def infer_often(side: Side, random: Random) -> Results:
    """Calls of one size, as many as are recorded after."""
    kind, calls = random.choice(["fresh", "same"]), random.randint(3, 9)
    return [copies(forward(side, input_of(side, random, kind, 16))) for _ in range(calls)]


def hold_outputs(side: Side, random: Random) -> Results:
    """Outputs that the user keeps: whole, as views, detached, in cycles, by dlpack."""
    grad_mode = random.choice(["none", "inference", "grad", "none"])
    for _ in range(random.randint(1, 3)):
        result = tensors(forward(side, input_of(side, random, batch=16), grad_mode))
        kind = random.choice(["whole", "view", "cycle", "deepcopy", "dlpack"])
        for output in result:
            kept = output.detach()
            if kind == "cycle":
                cycle: list[Any] = [output]
                cycle.append(cycle)
                continue
            if kind == "view":
                kept = kept[..., :3]
            elif kind == "deepcopy":
                kept = copy.deepcopy(kept)
            elif kind == "dlpack" and not kept.is_inference():
                kept = torch.from_dlpack(kept)
            side.held.append(kept)
    return []


def write_to_held(side: Side, random: Random) -> Results:
    """The user writes to outputs that he keeps."""
    for output in side.held:
        if not output.is_inference() and random.random() < 0.5:
            with torch.no_grad(), contextlib.suppress(RuntimeError):
                output.add_(1)
    return []


def drop_held(side: Side, random: Random) -> Results:
    """All or some of what is kept goes."""
    if random.random() < 0.3:
        side.held.clear()
    else:
        del side.held[:: random.randint(1, 3)]
    side.held_gradients.clear()
    return []


def collect(side: Side, random: Random) -> Results:
    """The collector runs, and memory goes back to the driver."""
    gc.collect()
    if random.random() < 0.6 and DEVICE == "cuda":
        torch.cuda.empty_cache()
    return []


def wait_with_backward(side: Side, random: Random) -> Results:
    """Forwards whose backwards come later, or never."""
    for _ in range(random.randint(1, 2)):
        side.pending.append(loss_of(side.call(input_of(side, random, "fresh", 16))))
    return [loss.detach().clone() for loss in side.pending]


def run_waiting_backward(side: Side, random: Random) -> Results:
    """One of those backwards, once, twice or never."""
    if not side.pending:
        return []
    loss = side.pending.pop(random.randrange(len(side.pending)))
    if random.random() < 0.3:
        return []
    if random.random() < 0.3:
        loss.backward(retain_graph=True)  # type: ignore[no-untyped-call]
    loss.backward()  # type: ignore[no-untyped-call]
    return [loss.detach()]


def call_another_function(side: Side, random: Random) -> Results:
    """A second compiled function over the same module."""
    results: Results = []
    for _ in range(random.randint(1, 5)):
        x = input_of(side, random, "fresh", 16)
        if random.random() < 0.5:
            with torch.no_grad():
                results.append(side.other(side.model, x).clone())
        else:
            side.model.zero_grad()
            loss_of(side.other(side.model, x)).backward()  # type: ignore[no-untyped-call]
    return results


def call_in_a_finalizer(side: Side, random: Random) -> Results:
    """A finalizer that calls the model while the collector runs."""
    if side.model.training or isinstance(side.model, Embedded):  # their order would decide
        return infer(side, random)
    seen: list[torch.Tensor] = []
    x = input_of(side, random, "fresh", 16).clone()

    class Calls:
        def __init__(self) -> None:
            self.cycle = self

        def __del__(self) -> None:
            seen.extend(copies(forward(side, x)))

    Calls()
    result = copies(forward(side, x))
    gc.collect()
    return [*seen, *result]


def fail(side: Side, random: Random) -> Results:
    """A call that raises."""
    with contextlib.suppress(Exception):
        side.call(torch.zeros(3, 7, 2, device=DEVICE))
    return []


def seed(side: Side, random: Random) -> Results:
    """The user seeds the generators."""
    torch.manual_seed(random.randrange(1 << 20))
    return [torch.rand(2, device=DEVICE)]


def copy_to_the_host(side: Side, random: Random) -> Results:
    """A copy that is not waited for, and a second call before it is."""
    y = first(forward(side, input_of(side, random, "same", 16)))
    host = torch.empty(y.shape, dtype=y.dtype, pin_memory=True)
    host.copy_(y, non_blocking=True)
    del y
    forward(side, input_of(side, random, "same", 16))
    torch.cuda.synchronize()
    return [host.clone()]
