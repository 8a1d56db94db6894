"""What happens around the calls: weights, settings, streams, threads, pools, captures."""

from __future__ import annotations

import functools
import gc
import threading
from typing import TYPE_CHECKING

import torch

from tools.fuzz.launches.calling import forward, hold_outputs, infer, infer_often
from tools.fuzz.launches.side import DEVICE, copies, first, input_of, tensors
from tools.fuzz.launches.training import train

if TYPE_CHECKING:
    from random import Random

    from tools.fuzz.launches.side import Results, Side


def replace_weights(side: Side, random: Random) -> Results:
    """Weights in other memory, written in place, loaded, or sent to the CPU and back."""
    model, how = side.model, random.choice(["data", "write", "load", "some", "move"])
    if how == "load":
        state = model.state_dict()
        scaled = {k: v * 0.98 if v.is_floating_point() else v for k, v in state.items()}
        model.load_state_dict(scaled)
    elif how == "move":
        model.cpu().to(DEVICE)
    else:
        with torch.no_grad():
            for parameter in model.parameters():
                if how == "write":
                    parameter.mul_(0.98)
                elif how == "data" or random.random() < 0.5:
                    parameter.data = parameter.data.clone()
    if how not in ("write", "load"):
        model.zero_grad()
    return []


def switch(side: Side, random: Random) -> Results:
    """Training mode, autocast, or whether a parameter has a gradient."""
    what = random.choice(["training", "autocast", "gradient"])
    if what == "training":
        side.model.train(not side.model.training)
    elif what == "autocast":
        side.autocast = not side.autocast
    else:
        parameter = next(side.model.parameters())
        parameter.requires_grad_(not parameter.requires_grad)
        parameter.grad = None
    return []


def set_flags(side: Side, random: Random) -> Results:
    """Flags of torch that choose kernels. They are set, not switched: both sides do it."""
    what, value = (
        random.choice(["tf32", "deterministic", "benchmark", "bf16"]),
        random.random() < 0.5,
    )
    if DEVICE == "cpu":
        torch.use_deterministic_algorithms(value, warn_only=True)
    elif what == "tf32":
        torch.backends.cuda.matmul.allow_tf32 = value
        torch.backends.cudnn.allow_tf32 = value
    elif what == "deterministic":
        torch.use_deterministic_algorithms(value, warn_only=True)
        torch.backends.cudnn.deterministic = value
    elif what == "benchmark":
        torch.backends.cudnn.benchmark = value
    else:
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = value
    return []


def reset_flags() -> None:
    """The flags as a trial begins."""
    torch.use_deterministic_algorithms(False)
    if DEVICE == "cpu":  # where tests of torch may have locked the others
        return
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = True


def rounds_more() -> bool:
    """Whether products of float32 may be rounded as TF32."""
    return torch.backends.cuda.matmul.allow_tf32


def call_in_a_thread(side: Side, random: Random) -> Results:
    """Another thread calls, holds or trains."""
    action = random.choice([infer, infer_often, hold_outputs, train])
    results: list[Results] = []
    errors: list[Exception] = []

    def work() -> None:
        try:
            results.append(action(side, random))
        except Exception as error:  # raised in the caller's thread
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


@functools.cache
def _streams() -> list[torch.cuda.Stream]:
    return [torch.cuda.Stream(priority=-(number % 2)) for number in range(3)]


def call_on_a_stream(side: Side, random: Random) -> Results:
    """Calls on one of three streams, one with priority."""
    stream, here = random.choice(_streams()), torch.cuda.current_stream()
    stream.wait_stream(here)
    with torch.cuda.stream(stream):
        results = random.choice([infer, infer_often, hold_outputs, train])(side, random)
    here.wait_stream(stream)
    return results


def read_on_a_stream(side: Side, random: Random) -> Results:
    """A side stream reads outputs slowly; the main stream waits before they are dropped."""
    stream, here = torch.cuda.Stream(), torch.cuda.current_stream()
    results = []
    for _ in range(random.randint(1, 4)):
        output = first(forward(side, input_of(side, random, "fresh", 16)))
        stream.wait_stream(here)
        with torch.cuda.stream(stream):
            torch.cuda._sleep(3_000_000)
            read = output * 1
        here.wait_stream(stream)
        read.record_stream(here)
        del output
        results.append(read)
    return list(results)


@functools.cache
def _pool() -> torch.cuda.MemPool:
    return torch.cuda.MemPool()


def call_in_a_pool(side: Side, random: Random) -> Results:
    """Calls while the user allocates from a pool of his own."""
    with torch.cuda.use_mem_pool(_pool()):
        return random.choice([infer, infer_often])(side, random)


def capture_a_call(side: Side, random: Random) -> Results:
    """The user captures a call as a CUDA graph; others come between its replays."""
    x = input_of(side, random, "fresh", 16).clone()
    side.pending.clear()
    stream, here = torch.cuda.Stream(), torch.cuda.current_stream()
    stream.wait_stream(here)
    with torch.no_grad(), torch.cuda.stream(stream):
        for _ in range(2):
            side.call(x)
    here.wait_stream(stream)
    torch.cuda.synchronize()
    gc.collect()
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        outputs = tensors(side.call(x))
    results: Results = []
    for _ in range(2):
        x.copy_(input_of(side, random, "fresh", 16))
        graph.replay()
        results += [copies(tuple(outputs)), infer(side, random), copies(tuple(outputs))]
    torch.cuda.synchronize()
    return results
