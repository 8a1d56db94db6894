"""Recordings and the state of torch's libraries: workspaces, handles, settings, allocators."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest
import torch
from torch.nn import functional as F

from tests.launches import (
    ALWAYS,
    WARM,
    assert_every_program_replayed,
    assert_launched,
    close,
    compiled_for,
    launch_lines,
    randn,
    recordings_of,
    replays,
)

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def split_product(x: torch.Tensor) -> torch.Tensor:
    """Its kernel adds up parts in a workspace."""
    return x @ x.t()


def convolution(x: torch.Tensor) -> torch.Tensor:
    weight = torch.full((8, 4, 3, 3), 0.5, device=x.device)
    return F.conv2d(x.view(4, 4, 16, -1), weight).relu()


def test_workspaces_that_torch_frees() -> None:
    compiled = compiled_for(split_product, ALWAYS)
    x = randn(64, 16384)
    want = split_product(x)
    for _ in range(WARM):
        close(compiled(x), want)
    assert_launched(compiled, ALWAYS)
    torch._C._cuda_clearCublasWorkspaces()
    sevens = [torch.full((1 << 18,), 7.0, device="cuda") for _ in range(128)]
    for _ in range(3):
        close(compiled(x), want)
    torch.cuda.empty_cache()
    close(compiled(x), want)
    assert all((each == 7).all() for each in sevens)


@pytest.mark.parametrize("function", [split_product, convolution])
def test_a_new_thread_for_each_call(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Each makes its own handles of libraries, which a capture forbids: the second thread's first
    call is the second call.
    """
    compiled = compiled_for(function, ALWAYS)
    stream = torch.cuda.Stream()
    got: list[tuple[torch.Tensor, torch.Tensor]] = []

    def work(calls: int) -> None:
        with torch.cuda.stream(stream):
            x = randn(64, 64)
            for _ in range(calls):
                got.append((x, compiled(x)))
            stream.synchronize()

    for calls in (1, 3, 3, 3):
        thread = threading.Thread(target=work, args=(calls,))
        thread.start()
        thread.join()
    for x, out in got:
        close(out, function(x))
    assert_launched(compiled, ALWAYS)


def test_settings_of_products_between_calls() -> None:
    matmul = torch.backends.cuda.matmul
    compiled = compiled_for(lambda x, y: x @ y, ALWAYS)
    x, y = (randn(256, 4096).half() for _ in range(2))
    before = matmul.allow_fp16_accumulation
    try:
        for turn in range(4 * WARM):
            matmul.allow_fp16_accumulation = bool(turn // WARM % 2)
            got = compiled(x, y.t())
            assert torch.equal(got, x @ y.t()), f"call {turn}"
    finally:
        matmul.allow_fp16_accumulation = before
    assert_launched(compiled, ALWAYS)


@pytest.mark.skipif(
    not hasattr(torch._C, "_get_fp32_precision_getter"), reason="this torch has no such setting"
)
def test_precisions_by_their_new_names_between_calls() -> None:
    """Torch then refuses to read them by their old names."""
    matmul = torch.backends.cuda.matmul
    compiled = compiled_for(lambda x: x @ x.t(), ALWAYS)
    x = randn(256, 512)
    before = matmul.fp32_precision
    try:
        for turn in range(4 * WARM):
            matmul.fp32_precision = ("ieee", "tf32")[turn // WARM % 2]
            assert torch.equal(compiled(x), x @ x.t()), f"call {turn}"
    finally:
        matmul.fp32_precision = before
    assert len(recordings_of(compiled)) == 2, launch_lines(compiled)


def test_library_calls_draw_in_recordings_of_two_streams() -> None:
    """Which may run at the same time: each has seed and offset in a place that no other has."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(x, x, x, dropout_p=0.5)

    compiled, other = compiled_for(function, ALWAYS), torch.cuda.Stream()
    x = randn(1, 2, 16, 16)
    torch.cuda.synchronize()

    def on_both(call: Callable[[torch.Tensor], torch.Tensor]) -> list[torch.Tensor]:
        out = []
        for _ in range(4):
            out.append(call(x))
            with torch.cuda.stream(other):
                out.append(call(x))
        torch.cuda.synchronize()
        return out

    for _ in range(WARM):
        on_both(compiled)
    assert len(recordings_of(compiled)) == 2, launch_lines(compiled)
    before = replays(compiled)
    torch.manual_seed(5)
    got = on_both(compiled)
    torch.manual_seed(5)
    for out, want in zip(got, on_both(function), strict=True):
        close(out, want)
    assert replays(compiled) == before + 8


class Attention(torch.nn.Module):
    """Attention with dropout between drawing kernels, twice."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        for _ in range(2):
            x = F.dropout(self.inner(x), 0.25)
            x = F.scaled_dot_product_attention(x, x, x, mask, dropout_p=0.5)
        return F.dropout(x, 0.25)


@pytest.mark.parametrize("how", ["plain", "masked", "two forwards", "retain", "dynamic"])
def test_attention_with_dropout_in_training(how: str) -> None:
    """In float32 the backward gets seed and offset from the CPU, in a capture from the GPU."""
    model = Attention().cuda()
    compiled = compiled_for(model, ALWAYS, dynamic=how == "dynamic")

    def step(function: Callable[..., torch.Tensor], x: torch.Tensor) -> list[torch.Tensor]:
        mask = torch.ones(x.shape[2], x.shape[2], device="cuda").tril() if how == "masked" else None
        x = x.clone().requires_grad_()
        losses = [function(x, mask).square().sum()]
        if how == "two forwards":
            losses.append(function(x + 1, mask).square().sum())
        for loss in losses:
            if how == "retain":
                loss.backward(retain_graph=True)
            loss.backward()
        gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        model.zero_grad()
        assert x.grad is not None
        return [*(loss.detach() for loss in losses), x.grad, *gradients]

    for turn in range(2 * WARM):
        x = randn(2, 3, 16 + 8 * (turn % 2) if how == "dynamic" else 16, 8)
        if turn == WARM:
            torch.manual_seed(-5)
        state = torch.cuda.get_rng_state()
        want = step(model, x)
        after = torch.cuda.get_rng_state()
        torch.cuda.set_rng_state(state)
        close(step(compiled, x), want)
        assert torch.equal(torch.cuda.get_rng_state(), after)
    assert_every_program_replayed(compiled)


def test_the_first_backward_of_attention_is_plain_and_the_next_replayed() -> None:
    """Seeds of a recorded forward serve a plain backward, and the other way round."""
    model = Attention().cuda()
    compiled = compiled_for(model, ALWAYS)
    x = randn(2, 3, 16, 8)
    for turn in range(3 * WARM):
        state = torch.cuda.get_rng_state()
        results = []
        for function in (model, compiled):
            torch.cuda.set_rng_state(state)
            side = torch.cuda.Stream() if turn % 3 == 2 else torch.cuda.current_stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                loss = function(x).square().sum()
                loss.backward()
            torch.cuda.current_stream().wait_stream(side)
            results.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
            model.zero_grad()
        close(results[1], results[0])
    assert_every_program_replayed(compiled)


def test_memory_that_cannot_be_had_raises_as_in_eager() -> None:
    compiled = compiled_for(lambda x: x + 1, ALWAYS)
    x = randn(1).expand(1 << 42)
    for function in (lambda x: x + 1, compiled):
        with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate"):
            function(x)
    x = randn(1 << 26)
    for _ in range(WARM):
        compiled(x)
    before = replays(compiled)
    assert before
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    try:
        torch.cuda.set_per_process_memory_fraction(
            (torch.cuda.memory_reserved() + (1 << 27)) / total
        )
        with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate"):
            compiled(x)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    close(compiled(x), x + 1)
    assert replays(compiled) == before + 2


def test_sizes_for_whose_recording_there_is_no_memory() -> None:
    """The caching allocator frees nothing while a capture runs."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return ((x @ x.t()) + 1) @ x

    compiled = compiled_for(function, ALWAYS, dynamic=True)
    total = torch.cuda.get_device_properties(0).total_memory
    large, small = randn(2048, 2048), randn(64, 64)
    want = function(large).cpu()
    compiled(large)
    try:
        torch.cuda.set_per_process_memory_fraction(
            (torch.cuda.memory_reserved() + (1 << 22)) / total
        )
        for _ in range(4):
            close(compiled(large).cpu(), want)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert not recordings_of(compiled), launch_lines(compiled)
    for _ in range(WARM):
        close(compiled(small), function(small))
    assert len(recordings_of(compiled)) == 1, launch_lines(compiled)


ATTENTION_IN_A_NEW_PROCESS = """
import sys, torch, flambeau
from torch.nn import functional as F
x = torch.randn(1, 2, 16, 16, device="cuda")
if sys.argv[1] == "compiled":
    compiled = flambeau.compile(lambda x: F.scaled_dot_product_attention(x, x, x))
    for _ in range(3):
        compiled(x)
    assert len(flambeau.explain(compiled).graphs) == 1, flambeau.explain(compiled)
else:
    F.scaled_dot_product_attention(x, x, x)
print(torch._C._get_sdp_priority_order())
"""

CALLS_WITH_AN_ALLOCATOR = """
import torch, flambeau
compiled = flambeau.compile(lambda x: (x @ x.t()).sin() + 1, mode="reduce-overhead")
for _ in range(5):
    x = torch.randn(300, 300, device="cuda")
    torch.testing.assert_close(compiled(x), (x @ x.t()).sin() + 1, rtol=1e-3, atol=1e-3)
(graph,) = flambeau.explain(compiled).graphs
(line,) = graph.launches
print(line)
"""


def in_a_new_process(program: str, *arguments: str, **environment: str) -> str:
    """What a program prints."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_the_first_attention_of_a_process_is_compiled_once() -> None:
    """Torch orders the kernels of attention, which is guarded, when it first chooses one."""
    order = in_a_new_process(ATTENTION_IN_A_NEW_PROCESS, "compiled")
    assert order == in_a_new_process(ATTENTION_IN_A_NEW_PROCESS, "eager")


@pytest.mark.parametrize(
    ("allocator", "launched"),
    [
        ("backend:cudaMallocAsync", "the allocator cudaMallocAsync has no memory pools"),
        ("expandable_segments:True", "launched as one CUDA graph"),
    ],
)
def test_allocators(allocator: str, launched: str) -> None:
    printed = in_a_new_process(CALLS_WITH_AN_ALLOCATOR, PYTORCH_CUDA_ALLOC_CONF=allocator)
    assert launched in printed
