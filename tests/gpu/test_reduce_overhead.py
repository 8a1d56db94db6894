"""mode="reduce-overhead" beside eager, whatever the caller does with inputs, outputs, streams,
threads, memory and modules between calls.
"""

from __future__ import annotations

import copy
import gc
import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import flambeau
from flambeau_runtime.graph_launch.policy import GIVEN_BACK
from tests.launches import (
    ALWAYS,
    WARM,
    Beside,
    assert_launched,
    close,
    compiled_for,
    memory_after,
    randn,
    recordings_of,
    replays,
)

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

two_gpus = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.device_count() < 2, reason="needs two GPUs"
)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 8)).cuda()


def pointwise(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() + 1).cos()


def product(x: torch.Tensor) -> torch.Tensor:
    return x @ x.t()


def mixed(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = (x.cos() @ x.t()).relu()
    return y, y.sum(0)


FUNCTIONS = {"pointwise": pointwise, "product": product, "mixed": mixed}
SHAPES = {"small": (9, 7), "large": (700, 700)}
"""Outputs of at most 1 MiB are copied from where libraries write them, larger ones can stay."""


def tensors_of(result: Any) -> list[torch.Tensor]:
    return list(result) if isinstance(result, tuple) else [result]


def test_the_mode_records() -> None:
    compiled = flambeau.compile(pointwise, mode="reduce-overhead")
    for _ in range(WARM):
        x = randn(5, 5)
        close(compiled(x), pointwise(x))
    assert_launched(compiled, ALWAYS, at_least=WARM - 2)


# Outputs


@pytest.mark.parametrize("keep", ["all", "every third", "views", "gradients' views", "the last"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_outputs_that_are_kept_are_never_overwritten(name: str, shape: str, keep: str) -> None:
    function = FUNCTIONS[name]
    compiled = compiled_for(function, ALWAYS)
    kept: list[tuple[torch.Tensor, torch.Tensor]] = []
    for turn in range(100 if shape == "small" else 40):
        x = randn(*SHAPES[shape])
        got, want = tensors_of(compiled(x)), tensors_of(function(x))
        close(got, want)
        if keep == "the last":
            kept.clear()
        if keep == "every third" and turn % 3:
            continue
        for ours, theirs in zip(got, want, strict=True):
            view: Callable[[torch.Tensor], torch.Tensor] = {
                "views": lambda tensor: tensor[1:],
                "gradients' views": lambda tensor: tensor.detach().view(-1)[::2],
            }.get(keep, lambda tensor: tensor)
            kept.append((view(ours), view(theirs)))
        del got, want, ours, theirs
        for ours, theirs in kept[-6:]:
            close(ours, theirs)
    for ours, theirs in kept:
        close(ours, theirs)
    assert_launched(compiled, ALWAYS)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_outputs_that_the_caller_changes(name: str, shape: str) -> None:
    beside = Beside(FUNCTIONS[name])
    for _ in range(WARM):
        for out in tensors_of(beside(randn(*SHAPES[shape]))):
            out.mul_(3).add_(1)
    beside.assert_replayed(at_least=3)


@pytest.mark.parametrize("shape", SHAPES)
def test_outputs_whose_storage_is_resized(shape: str) -> None:
    beside = Beside(mixed)
    for _ in range(WARM):
        for out in tensors_of(beside(randn(*SHAPES[shape]))):
            out.untyped_storage().resize_(0)
        torch.cuda.empty_cache()
    assert_launched(beside.compiled, ALWAYS)


def test_the_next_input_is_the_last_output() -> None:
    beside = Beside(lambda x: (x @ x.t()).softmax(-1))
    x = randn(700, 700)
    for _ in range(3 * WARM):
        x = beside(x)
    beside.assert_replayed(at_least=WARM)


def test_outputs_that_share_memory() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x @ x.t()
        return y, y[1:], y.t(), y.view(-1)[2:9]

    compiled, kept = compiled_for(function, ALWAYS), []
    for _ in range(2 * WARM):
        x = randn(700, 700)
        got, want = compiled(x), function(x)
        close(got, want)
        storages = {tensor.untyped_storage().data_ptr() for tensor in got}
        assert len(storages) == 1
        got[0].zero_()
        assert not got[1].any()
        kept.append(got[3])
    assert not any(tensor.any() for tensor in kept)
    assert_launched(compiled, ALWAYS)


def test_outputs_that_are_inputs_numbers_and_none() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[Any, ...]:
        return x, y[1:], None, x.shape[0] + 1, (x @ y).sin()

    compiled = compiled_for(function, ALWAYS)
    for _ in range(WARM):
        x, y = randn(5, 5), randn(5, 5)
        got = compiled(x, y)
        close(got, function(x, y))
        assert got[0] is x
        assert got[1].untyped_storage().data_ptr() == y.untyped_storage().data_ptr()
    assert_launched(compiled, ALWAYS)


# Inputs


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_inputs_at_changing_addresses(name: str, shape: str) -> None:
    beside = Beside(FUNCTIONS[name])
    held = []
    for _ in range(2 * WARM):
        held.append(randn(*SHAPES[shape]))
        beside(held[-1])
    beside.assert_replayed(at_least=WARM)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_inputs_at_changing_alignments(name: str) -> None:
    function = FUNCTIONS[name]
    compiled = compiled_for(function, ALWAYS)
    memory = randn(5000)
    for turn in range(4 * WARM):
        x = memory[turn % 7 :][: 64 * 64].view(64, 64)
        close(compiled(x), function(x))
    assert_launched(compiled, ALWAYS, at_least=WARM)


def test_dropout_of_inputs_at_changing_alignments() -> None:
    """As a call of ATen, which draws other numbers where its operand is not aligned."""
    compiled = flambeau.compile(lambda x: nn.functional.dropout(x, 0.5) + 1, backend="cudagraphs")
    memory = randn(5000)
    for turn in range(4 * WARM):
        start = 0 if turn < 2 * WARM else 1
        x = memory[start + 4 * (turn % 7) :][: 64 * 64].view(64, 64)
        torch.manual_seed(turn)
        want = nn.functional.dropout(x, 0.5) + 1
        torch.manual_seed(turn)
        close(compiled(x), want)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_inputs_with_gaps(name: str) -> None:
    beside = Beside(FUNCTIONS[name])
    for _ in range(2 * WARM):
        beside(randn(40, 90)[3:33, 7:80:2])
    beside.assert_replayed(at_least=WARM)


def test_inputs_that_share_memory() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return y * 2, y @ x

    compiled = compiled_for(function, ALWAYS)
    for _ in range(2 * WARM):
        x = randn(8, 8)
        close(compiled(x, x[1:]), function(x, x[1:]))
    assert_launched(compiled, ALWAYS)


def test_inputs_that_the_function_changes() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(y)
        y[1:].zero_()
        return x @ y

    beside = Beside(function)
    for _ in range(2 * WARM):
        x, y = randn(8, 8), randn(8, 8)
        versions = x._version, y._version
        beside(x, y)
        assert (x._version, y._version) > versions
    assert replays(beside.compiled) or "writes to an input that moves" in str(
        flambeau.explain(beside.compiled)
    )


def test_one_input_that_the_function_changes_in_place() -> None:
    x = randn(6, 6)
    twin = x.clone()

    def function(x: torch.Tensor) -> torch.Tensor:
        return x.mul_(0.5).add_(1).sum()

    compiled = compiled_for(function, ALWAYS)
    for _ in range(WARM):
        close((compiled(x), x), (function(twin), twin))
    assert_launched(compiled, ALWAYS, at_least=WARM - 2)


def test_a_decode_loop() -> None:
    """Sizes that come once each are not recorded."""
    beside = Beside(lambda x: (x @ x.t()).softmax(-1), dynamic=True)
    for n in range(2, 80):
        beside(randn(n, 8))
    assert not recordings_of(beside.compiled)


def test_sizes_that_recur() -> None:
    beside = Beside(lambda x: (x @ x.t()).softmax(-1), dynamic=True)
    for _ in range(WARM):
        for n in (5, 9, 17):
            beside(randn(n, 8))
    assert len(recordings_of(beside.compiled)) >= 3
    beside.assert_replayed(at_least=2 * WARM)


# The state of torch


def test_modes_of_gradients_between_calls() -> None:
    function = lambda x: (x @ x.t()).sin()  # noqa: E731
    compiled = compiled_for(function, ALWAYS)
    modes = (torch.no_grad, torch.enable_grad, torch.inference_mode)
    for turn in range(6 * WARM):
        x = randn(6, 6)
        with modes[turn // 2 % 3]():
            got, want = compiled(x), function(x)
            close(got, want)
        got = compiled(x.requires_grad_())
        want = function(x)
        close(got.detach(), want.detach())
        close(*(torch.autograd.grad(out.sum(), x)[0] for out in (got, want)))
    assert_launched(compiled, ALWAYS)


def test_an_error_between_calls() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x @ y).relu()

    beside = Beside(function, dynamic=False)
    for _ in range(3):
        for _ in range(WARM):
            beside(randn(5, 6), randn(6, 4))
        with pytest.raises(RuntimeError):
            beside.compiled(randn(5, 6), randn(5, 4))
    assert_launched(beside.compiled, ALWAYS, at_least=WARM)


# Streams and threads


@pytest.mark.parametrize("name", FUNCTIONS)
def test_other_streams(name: str) -> None:
    function = FUNCTIONS[name]
    compiled = compiled_for(function, ALWAYS)
    streams = [torch.cuda.default_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
    kept = []
    for turn in range(6 * WARM):
        stream = streams[turn // 2 % 3]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            x = randn(300, 300)
            kept.append((x, compiled(x)))
    torch.cuda.synchronize()
    for x, got in kept:
        close(got, function(x))
    assert_launched(compiled, ALWAYS, at_least=WARM)


def in_threads(work: Callable[[int], None], count: int = 2) -> None:
    """Run `work(number)` in as many threads; the first error is raised here."""
    errors: list[BaseException] = []
    barrier = threading.Barrier(count)

    def run(number: int) -> None:
        try:
            barrier.wait()
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("streams", [1, 2])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_threads(name: str, streams: int, shape: str) -> None:
    function = FUNCTIONS[name]
    compiled = compiled_for(function, ALWAYS)
    for _ in range(WARM):
        compiled(randn(*SHAPES[shape]))
    used = [torch.cuda.Stream() for _ in range(streams)]
    kept: list[list[Any]] = [[], []]

    def work(number: int) -> None:
        with torch.cuda.stream(used[number % streams]):
            for _ in range(100):
                x = randn(*SHAPES[shape])
                kept[number].append((x, compiled(x)))
                if len(kept[number]) > 20:
                    x, got = kept[number].pop(0)
                    close(got, function(x))

    in_threads(work)
    torch.cuda.synchronize()
    for x, got in kept[0] + kept[1]:
        close(got, function(x))
    assert_launched(compiled, ALWAYS)


def test_threads_with_a_mutated_input() -> None:
    """Tensors are asked, which releases the GIL, between the match and the launch."""

    def function(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * 2

    compiled = compiled_for(function, ALWAYS)
    for _ in range(WARM):
        compiled(randn(9))

    def work(number: int) -> None:
        for turn in range(300):
            x = torch.full((9,), float(turn), device="cuda")
            got = compiled(x)
            close(got, torch.full((9,), 2.0 * turn + 2, device="cuda"))

    in_threads(work)
    assert_launched(compiled, ALWAYS)


def test_threads_train_models_of_their_own() -> None:
    models = [mlp(), mlp()]
    compiled = [compiled_for(model, ALWAYS) for model in models]
    twins = [copy.deepcopy(model) for model in models]
    for number in range(2):
        for _ in range(WARM):
            compiled[number](randn(5, 16)).sum().backward()
        models[number].zero_grad()

    def work(number: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(50):
                x = torch.ones(5, 16, device="cuda")
                compiled[number](x).sum().backward()
                twins[number](x).sum().backward()
            torch.cuda.current_stream().synchronize()

    in_threads(work)
    for model, twin in zip(models, twins, strict=True):
        for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-3)
    for each in compiled:
        assert_launched(each, ALWAYS)


def test_threads_that_draw_random_numbers_replay() -> None:
    """Each number is drawn once, whichever thread draws it."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.rand_like(x) + 0 * x

    compiled = compiled_for(function, ALWAYS)
    x = torch.ones(4096, device="cuda")
    for _ in range(WARM):
        compiled(x)
    torch.manual_seed(3)
    want = {tuple(function(x)[:4].tolist()) for _ in range(80)}
    got: list[tuple[float, ...]] = []
    torch.manual_seed(3)

    def work(number: int) -> None:
        for _ in range(40):
            got.append(tuple(compiled(x)[:4].tolist()))

    in_threads(work)
    assert set(got) == want
    assert_launched(compiled, ALWAYS)


# Captures and memory of the caller


@pytest.mark.parametrize("warm", [0, WARM])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_capture_by_the_caller(name: str, warm: int) -> None:
    function = FUNCTIONS[name]
    compiled = compiled_for(function, ALWAYS)
    x = randn(64, 64)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(1 + warm):
            compiled(x)
    torch.cuda.synchronize()
    before = replays(compiled)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = compiled(x)
    assert replays(compiled) == before, "a recording cannot be replayed into a capture"
    for _ in range(5):
        x.copy_(randn(64, 64))
        graph.replay()
        close(captured, function(x))
        y = randn(64, 64)
        close(compiled(y), function(y))
        close(captured, function(x))


@pytest.mark.parametrize("when", ["from the first call", "after recording"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_memory_pool_of_the_caller(name: str, when: str) -> None:
    function = FUNCTIONS[name]
    function(randn(700, 700))  # libraries keep their workspaces: not in the pool
    compiled = compiled_for(function, ALWAYS)
    if when == "after recording":
        for _ in range(WARM):
            compiled(randn(700, 700))
        assert_launched(compiled, ALWAYS)
    made = len(recordings_of(compiled))
    pool = torch.cuda.MemPool()
    kept: list[tuple[torch.Tensor, ...]] = []
    try:
        with torch.cuda.use_mem_pool(pool):
            for _ in range(2 * WARM):
                x = randn(700, 700)
                kept.append((x, compiled(x), randn(700, 700).fill_(1)))
        assert len(recordings_of(compiled)) == made, "its memory would be the caller's"
        for _ in range(WARM):
            x = randn(700, 700)
            close(compiled(x), function(x))
        for inputs, got, ones in kept:
            close(got, function(inputs))
            assert (ones == 1).all()
        assert_launched(compiled, ALWAYS)
    finally:  # before the pool, also where an assertion fails: torch ends the process otherwise
        x = inputs = got = ones = None  # type: ignore[assignment]
        kept.clear()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_that_is_dropped_inside_a_memory_pool(name: str) -> None:
    """The allocator ends the process if a MemPool goes inside a `use_mem_pool` block."""
    compiled = compiled_for(FUNCTIONS[name], ALWAYS)
    for _ in range(WARM):
        compiled(randn(64, 64))
    assert_launched(compiled, ALWAYS)
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        del compiled
        gc.collect()
        y = randn(64, 64)
    assert y.isfinite().all()
    del y
    again = compiled_for(FUNCTIONS[name], ALWAYS)
    for _ in range(WARM):
        x = randn(64, 64)
        close(again(x), FUNCTIONS[name](x))
    assert_launched(again, ALWAYS)


def test_a_function_that_is_dropped_while_the_caller_captures() -> None:
    x = randn(64, 64)
    compiled = compiled_for(mixed, ALWAYS)
    for _ in range(WARM):
        compiled(x)
    assert_launched(compiled, ALWAYS)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x * 2
        del compiled
        gc.collect()
    graph.replay()
    assert torch.equal(y, x * 2)
    again = compiled_for(pointwise, ALWAYS)
    for _ in range(WARM):
        close(again(x), pointwise(x))
    assert_launched(again, ALWAYS)


def test_garbage_collection_and_empty_cache_between_calls() -> None:
    beside = Beside(mixed)
    for _ in range(2 * WARM):
        beside(randn(700, 700))
        gc.collect()
        torch.cuda.empty_cache()
    beside.assert_replayed(at_least=WARM)


def test_finalizers_that_call_the_function() -> None:
    compiled = compiled_for(mixed, ALWAYS)
    x = randn(700, 700)
    want = mixed(x)
    results = []

    class Calls:
        def __init__(self) -> None:
            self.cycle = self

        def __del__(self) -> None:
            results.append(compiled(x))

    threshold = gc.get_threshold()
    gc.set_threshold(20)
    try:
        for _ in range(4 * WARM):
            Calls()
            got = compiled(x)
            close(got, want)
    finally:
        gc.set_threshold(*threshold)
    gc.collect()
    assert len(results) == 4 * WARM
    close(results, [want] * len(results))
    assert_launched(compiled, ALWAYS)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_memory_does_not_grow(name: str) -> None:
    """A thousand calls with new inputs, some outputs held for a while, little memory in between."""
    function = FUNCTIONS[name]
    compiled = compiled_for(function, ALWAYS)
    held: list[tuple[torch.Tensor, Any]] = []
    turn = 0

    def call() -> None:
        nonlocal turn
        turn += 1
        x = randn(*SHAPES["large"])
        got = compiled(x)
        if turn % 5 == 0:
            held.append((x, got))
        if turn % 40 == 0:
            for x, got in held:
                close(got, function(x))
            held.clear()
        if turn % 100 == 0:
            torch.cuda.empty_cache()

    before = memory_after(call, 200)
    assert memory_after(call, 1000) <= before
    assert_launched(compiled, ALWAYS)


def test_sizes_that_come_once_hold_no_memory() -> None:
    compiled = compiled_for(lambda x: x @ x.t(), ALWAYS, dynamic=True)
    for n in range(700 - GIVEN_BACK, 702):  # from then on plain calls keep a workspace of cuBLAS
        compiled(randn(n, 8))
    before = memory_after(lambda: None, 1)
    for n in range(702, 740):
        compiled(randn(n, 8))
    assert memory_after(lambda: None, 1) <= before + (1 << 22), "outputs of past sizes are held"


def test_compiled_functions_that_are_dropped_hold_no_memory() -> None:
    def call() -> None:
        compiled = compiled_for(lambda x: (x @ x.t()).sin() @ x, ALWAYS)
        for _ in range(4):
            compiled(randn(700, 700))
        assert_launched(compiled, ALWAYS)
        del compiled
        gc.collect()

    before = memory_after(call, 2)
    assert memory_after(call, 6) <= before + (1 << 21)


# Modules


def test_state_of_a_module_changes_between_calls() -> None:
    model = mlp()
    beside = Beside(model)

    def load(each: nn.Module) -> None:
        each.load_state_dict({name: value * 0.5 for name, value in each.state_dict().items()})

    def swap(each: nn.Module) -> None:
        for parameter in each.parameters():
            parameter.data = parameter.data.clone() + 0.25

    def write(each: nn.Module) -> None:
        with torch.no_grad():
            for parameter in each.parameters():
                parameter.mul_(1.5)

    with torch.no_grad():
        for change in (load, swap, write, swap, load):
            for _ in range(WARM):
                beside(randn(5, 16))
            change(beside.eager)
            change(model)
    beside.assert_replayed(at_least=WARM)


def test_parameters_that_move_before_every_call() -> None:
    model = mlp()
    beside = Beside(model)
    with torch.no_grad():
        for _ in range(2 * WARM):
            for parameter in model.parameters():
                parameter.data = parameter.data.clone()
            beside(randn(5, 16))
    assert_launched(beside.compiled, ALWAYS)


def test_copies_of_a_compiled_module() -> None:
    model = mlp()
    compiled = compiled_for(model, ALWAYS)
    for _ in range(WARM):
        compiled(randn(5, 16)).sum().backward()
    twin = copy.deepcopy(compiled)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.mul_(2)
    eager = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in eager.parameters():
            parameter.mul_(2)
    for _ in range(WARM):
        x = randn(5, 16)
        close(compiled(x).detach(), model(x).detach())
        close(twin(x).detach(), eager(x).detach())
    assert_launched(compiled, ALWAYS)


# Several GPUs


@two_gpus
def test_a_model_on_the_second_gpu() -> None:
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 8)).to("cuda:1")
    compiled = compiled_for(model, ALWAYS)
    assert torch.cuda.current_device() == 0
    kept = []
    for _ in range(2 * WARM):
        x = torch.randn(5, 16, device="cuda:1", requires_grad=True)
        out = compiled(x)
        kept.append((out, model(x)))
        out.sum().backward()
        model.zero_grad()
        torch.cuda.empty_cache()
    for got, want in kept:
        close(got.detach(), want.detach())
    assert_launched(compiled, ALWAYS)


@two_gpus
def test_inputs_on_the_wrong_gpu() -> None:
    model = mlp()
    compiled = compiled_for(model, ALWAYS)
    for _ in range(WARM):
        compiled(randn(5, 16))
    with pytest.raises(RuntimeError):
        model(torch.randn(5, 16, device="cuda:1"))
    with pytest.raises(RuntimeError):
        compiled(torch.randn(5, 16, device="cuda:1"))
    x = randn(5, 16)
    close(compiled(x).detach(), model(x).detach())
    assert_launched(compiled, ALWAYS)


@two_gpus
def test_a_thread_for_each_gpu() -> None:
    compiled = compiled_for(mixed, ALWAYS)

    def work(number: int) -> None:
        for _ in range(100):
            x = torch.randn(300, 300, device=f"cuda:{number}")
            close(compiled(x), mixed(x))

    in_threads(work)
    assert_launched(compiled, ALWAYS)
