"""Calls of the model outside training, and what becomes of their outputs."""

from __future__ import annotations

import contextlib
import copy
import gc
from typing import TYPE_CHECKING, Any

import torch

from tools.fuzz.launches.half import DEVICE, copies, first, input_of, loss_of, tensors
from tools.fuzz.launches.models import Embedded

if TYPE_CHECKING:
    from random import Random

    from tools.fuzz.launches.half import Half, Results

_GRAD_MODES = {"grad": torch.enable_grad, "none": torch.no_grad, "inference": torch.inference_mode}


def forward(half: Half, x: torch.Tensor, grad_mode: str = "none") -> Any:
    """The model's result in a grad mode."""
    with _GRAD_MODES[grad_mode]():
        return half.call(x)


def infer(half: Half, random: Random) -> Results:
    """One call on any input."""
    grad_mode = random.choice(["none", "none", "inference", "grad"])
    return copies(forward(half, input_of(half, random), grad_mode))


def infer_often(half: Half, random: Random) -> Results:
    """Calls of one size, as many as are recorded after."""
    kind, calls = random.choice(["fresh", "same"]), random.randint(3, 9)
    return [copies(forward(half, input_of(half, random, kind, 16))) for _ in range(calls)]


def hold_outputs(half: Half, random: Random) -> Results:
    """Outputs that the user keeps: whole, as views, detached, in cycles, by dlpack."""
    grad_mode = random.choice(["none", "inference", "grad", "none"])
    for _ in range(random.randint(1, 3)):
        result = tensors(forward(half, input_of(half, random, batch=16), grad_mode))
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
            half.held.append(kept)
    return []


def write_to_held(half: Half, random: Random) -> Results:
    """The user writes to outputs that he keeps."""
    for output in half.held:
        if not output.is_inference() and random.random() < 0.5:
            with torch.no_grad(), contextlib.suppress(RuntimeError):
                output.add_(1)
    return []


def drop_held(half: Half, random: Random) -> Results:
    """All or some of what is kept goes."""
    if random.random() < 0.3:
        half.held.clear()
    else:
        del half.held[:: random.randint(1, 3)]
    half.held_gradients.clear()
    return []


def collect(half: Half, random: Random) -> Results:
    """The collector runs, and memory goes back to the driver."""
    gc.collect()
    if random.random() < 0.6 and DEVICE == "cuda":
        torch.cuda.empty_cache()
    return []


def wait_with_backward(half: Half, random: Random) -> Results:
    """Forwards whose backwards come later, or never."""
    for _ in range(random.randint(1, 2)):
        half.pending.append(loss_of(half.call(input_of(half, random, "fresh", 16))))
    return [loss.detach().clone() for loss in half.pending]


def run_waiting_backward(half: Half, random: Random) -> Results:
    """One of those backwards, once, twice or never."""
    if not half.pending:
        return []
    loss = half.pending.pop(random.randrange(len(half.pending)))
    if random.random() < 0.3:
        return []
    if random.random() < 0.3:
        loss.backward(retain_graph=True)  # type: ignore[no-untyped-call]
    loss.backward()  # type: ignore[no-untyped-call]
    return [loss.detach()]


def call_another_function(half: Half, random: Random) -> Results:
    """A second compiled function over the same module."""
    results: Results = []
    for _ in range(random.randint(1, 5)):
        x = input_of(half, random, "fresh", 16)
        if random.random() < 0.5:
            with torch.no_grad():
                results.append(half.other(half.model, x).clone())
        else:
            half.model.zero_grad()
            loss_of(half.other(half.model, x)).backward()  # type: ignore[no-untyped-call]
    return results


def call_in_a_finalizer(half: Half, random: Random) -> Results:
    """A finalizer that calls the model while the collector runs."""
    if half.model.training or isinstance(half.model, Embedded):  # their order would decide
        return infer(half, random)
    seen: list[torch.Tensor] = []
    x = input_of(half, random, "fresh", 16).clone()

    class Calls:
        def __init__(self) -> None:
            self.cycle = self

        def __del__(self) -> None:
            seen.extend(copies(forward(half, x)))

    Calls()
    result = copies(forward(half, x))
    gc.collect()
    return [*seen, *result]


def fail(half: Half, random: Random) -> Results:
    """A call that raises."""
    with contextlib.suppress(Exception):
        half.call(torch.zeros(3, 7, 2, device=DEVICE))
    return []


def seed(half: Half, random: Random) -> Results:
    """The user seeds the generators."""
    torch.manual_seed(random.randrange(1 << 20))
    return [torch.rand(2, device=DEVICE)]


def copy_to_the_host(half: Half, random: Random) -> Results:
    """A copy that is not waited for, and a second call before it is."""
    y = first(forward(half, input_of(half, random, "same", 16)))
    host = torch.empty(y.shape, dtype=y.dtype, pin_memory=True)
    host.copy_(y, non_blocking=True)
    del y
    forward(half, input_of(half, random, "same", 16))
    torch.cuda.synchronize()
    return [host.clone()]
