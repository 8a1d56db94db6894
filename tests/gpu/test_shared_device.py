"""Recorded graphs beside what else uses the device: other streams that read results, streams and
graphs of the caller, states of the generator, threads that draw.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.launches import (
    ALWAYS,
    AUTO,
    WARM,
    assert_launched,
    close,
    compiled_for,
    randn,
    recordings_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

A_WHILE = 50_000_000
"""Cycles for which a stream is kept busy: some 30 ms."""


def product(x: torch.Tensor) -> torch.Tensor:
    return x @ x.t()


def dropout_of_a_library(x: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(x, x, x, dropout_p=0.5)


@pytest.mark.parametrize("cuda_graphs", [AUTO, ALWAYS])
def test_a_result_that_another_stream_reads(cuda_graphs: str) -> None:
    compiled, side = compiled_for(product, cuda_graphs), torch.cuda.Stream()
    for _ in range(2 * WARM):
        compiled(randn(700, 700))
    for _ in range(4):
        x = randn(700, 700)
        want = product(x)
        y = compiled(x)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(A_WHILE)
            read = y + 0
            y.record_stream(side)
        del y
        after = compiled(randn(700, 700))
        torch.cuda.synchronize()
        close(read, want)
        del after
    assert_launched(compiled, ALWAYS)


def test_saved_tensors_that_another_stream_reads() -> None:
    """Offloaded activations: copied by another stream, and dropped."""
    model = nn.Sequential(nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU()).cuda()
    weights = {parameter.data_ptr() for parameter in model.parameters()}
    compiled, side = compiled_for(model, ALWAYS), torch.cuda.Stream()

    def pack(saved: torch.Tensor) -> torch.Tensor:
        if saved.data_ptr() in weights or not saved.is_cuda:
            return saved
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(A_WHILE // 10)
            copy = saved.clone()
        saved.record_stream(side)
        return copy

    def unpack(packed: torch.Tensor) -> torch.Tensor:
        torch.cuda.current_stream().wait_stream(side)
        return packed

    def gradients(
        run: Callable[..., torch.Tensor], inputs: list[torch.Tensor]
    ) -> list[torch.Tensor]:
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            losses = [run(x).square().mean() for x in inputs]
        return list(torch.autograd.grad(sum(losses), list(model.parameters())))  # type: ignore[arg-type]

    for _ in range(WARM):
        gradients(compiled, [randn(256, 512)])
    for _ in range(3):
        inputs = [randn(256, 512) for _ in range(3)]
        close(gradients(compiled, inputs), gradients(model, inputs))
    assert_launched(compiled, ALWAYS)


def test_products_on_a_stream_of_high_priority() -> None:
    """torch hands out the same few streams again and again; a recording's is none of them."""
    streams = [torch.cuda.Stream(priority=-1) for _ in range(32)]
    memory = []
    for stream in streams:  # so that workspaces are not given back
        with torch.cuda.stream(stream):
            memory.append(torch.empty(1024, device="cuda"))
    compiled = compiled_for(product, ALWAYS)
    x, other = randn(64, 16384), randn(64, 16384)
    want, want_other = product(x), product(other)
    for _ in range(WARM):
        compiled(x)
    for stream in streams:
        torch.cuda.synchronize()
        torch.cuda._sleep(A_WHILE // 10)
        with torch.cuda.stream(stream):
            torch.cuda._sleep(A_WHILE // 10)
        results = []
        for _ in range(20):
            here = compiled(x)
            with torch.cuda.stream(stream):
                results.append((here, product(other)))
        torch.cuda.synchronize()
        for here, there in results:
            close((here, there), (want, want_other))
    assert_launched(compiled, ALWAYS)


def test_another_state_of_the_generator() -> None:
    compiled = compiled_for(dropout_of_a_library, ALWAYS)
    x = randn(1, 2, 16, 16)
    for _ in range(WARM):
        compiled(x)
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    before = generator.graphsafe_get_state()
    drawn = []
    try:
        for run in (compiled, dropout_of_a_library):
            state = torch.Generator("cuda").manual_seed(99)
            generator.graphsafe_set_state(state.graphsafe_get_state())
            drawn.append([run(x), run(x), torch.rand(4, device="cuda")])
    finally:
        generator.graphsafe_set_state(before)
    close(drawn[0], drawn[1])
    assert_launched(compiled, ALWAYS)


def test_a_graph_of_the_caller_that_draws_meanwhile() -> None:
    ones, side, graph = torch.ones(4096, device="cuda"), torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        torch.cuda._sleep(A_WHILE)
        out = F.dropout(ones, 0.5)

    def drawn(meanwhile: Callable[[], object]) -> torch.Tensor:
        torch.manual_seed(5)
        torch.rand(64, device="cuda")
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            graph.replay()
        meanwhile()
        torch.cuda.synchronize()
        return out.clone()

    want = drawn(lambda: None)
    x = randn(1, 2, 16, 16)
    recorded, fresh = (compiled_for(dropout_of_a_library, ALWAYS) for _ in range(2))
    for _ in range(WARM):
        recorded(x)
    fresh(x)
    assert torch.equal(drawn(lambda: [recorded(x) for _ in range(4)]), want), "replays"
    assert torch.equal(drawn(lambda: [fresh(x) for _ in range(4)]), want), "a recording"
    assert_launched(recorded, ALWAYS)


def test_a_daemon_that_draws() -> None:
    """A thread that prefetches and augments: calls that draw by a library are not recorded."""
    end, errors = threading.Event(), []

    def draw() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            while not end.is_set():
                try:
                    torch.rand(16, device="cuda")
                except RuntimeError as error:
                    errors.append(error)

    thread = threading.Thread(target=draw, daemon=True)
    compiled = compiled_for(dropout_of_a_library, ALWAYS)
    x = randn(1, 2, 16, 16)
    thread.start()
    try:
        for _ in range(WARM):
            compiled(x)
    finally:
        end.set()
        thread.join()
    assert not errors
    assert not recordings_of(compiled)
    for _ in range(WARM):
        compiled(x)
    assert_launched(compiled, ALWAYS)
