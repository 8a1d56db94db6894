"""How compiled functions are launched on a GPU: compile for it, compare with eager, and count the
replays of recorded CUDA graphs.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch

import flambeau
from flambeau.report import report_of
from tests.same import same

if TYPE_CHECKING:
    from collections.abc import Callable

WARM = 10
"""Calls after which a Program that is limited by its launches has been recorded."""

NEVER, AUTO, ALWAYS = LAUNCHES = ("never", "auto", "always")
"""Values of the option `cuda_graphs`."""


def compiled_for(function: Callable[..., Any], cuda_graphs: str, **arguments: Any) -> Any:
    """The function, compiled whole, to be launched as `cuda_graphs` says."""
    arguments = {"fullgraph": True} | arguments
    return flambeau.compile(function, options={"cuda_graphs": cuda_graphs}, **arguments)


def launch_lines(compiled: Any) -> list[str]:
    """How each Program of a compiled function is launched, as `explain` prints it."""
    return [line for graph in flambeau.explain(compiled).graphs for line in graph.launches]


def recordings_of(compiled: Any) -> list[Any]:
    """The recordings that serve a compiled function."""
    found = []
    for graph in report_of(compiled).graphs:
        for launch in graph.launches:
            _, executable, _ = launch.args  # type: ignore[attr-defined]
            launcher = getattr(executable, "run", executable)
            found += getattr(launcher, "recordings", ())
    return found


def replays(compiled: Any) -> int:
    """How often the recordings that serve a compiled function were replayed."""
    return sum(recording.hits for recording in recordings_of(compiled))


def assert_launched(compiled: Any, cuda_graphs: str, *, at_least: int = 1) -> None:
    """Recordings were replayed if `cuda_graphs` allows any, and none was made otherwise."""
    lines = launch_lines(compiled)
    assert lines, "nothing was compiled for a GPU"
    if cuda_graphs == NEVER:
        assert not replays(compiled)
        assert all("the option cuda_graphs asks for it" in line for line in lines), lines
    else:
        assert any("launched as one CUDA graph" in line for line in lines), lines
        assert replays(compiled) >= at_least, lines


def assert_every_program_replayed(compiled: Any) -> None:
    """Each Program of a compiled function has recordings: forward and backward, say."""
    lines = launch_lines(compiled)
    assert lines
    assert all("launched as one CUDA graph" in line for line in lines), lines


def randn(*shape: int, **options: Any) -> torch.Tensor:
    """Random numbers on the GPU."""
    return torch.randn(shape, device="cuda", **options)


def close(got: Any, want: Any, path: str = "result") -> None:
    """As eager's but for rounding; what is read from wrong memory differs more."""
    same(got, want, path, tolerance=1e-3)


class Beside:
    """A function and its compiled twin, called side by side from equal random states."""

    def __init__(
        self, function: Callable[..., Any], cuda_graphs: str = ALWAYS, **arguments: Any
    ) -> None:
        self.eager = copy.deepcopy(function)
        self.function = function
        self.cuda_graphs = cuda_graphs
        self.compiled = compiled_for(function, cuda_graphs, **arguments)

    def __call__(self, *args: Any) -> Any:
        """Call both on copies of the arguments; the compiled result, which equals eager's."""
        theirs = copy.deepcopy(args)
        before = torch.cuda.get_rng_state()
        want = self.eager(*theirs)
        after = torch.cuda.get_rng_state()
        torch.cuda.set_rng_state(before)
        got = self.compiled(*args)
        assert torch.equal(torch.cuda.get_rng_state(), after), "random numbers were drawn otherwise"
        close(got, want)
        close(args, theirs, "arguments")
        self.same_state()
        return got

    def same_state(self) -> None:
        """The parameters and buffers are equal."""
        if not isinstance(self.eager, torch.nn.Module):
            return
        assert isinstance(self.function, torch.nn.Module)
        for getter in ("named_parameters", "named_buffers"):
            ours = dict(getattr(self.function, getter)())
            for name, want in getattr(self.eager, getter)():
                close(ours[name].detach(), want.detach(), name)

    def assert_replayed(self, *, at_least: int = 1) -> None:
        """What the comparisons were about took place."""
        assert_launched(self.compiled, self.cuda_graphs, at_least=at_least)


def memory_after(call: Callable[[], Any], count: int) -> int:
    """Bytes allocated after `count` calls that keep nothing."""
    for _ in range(count):
        call()
    torch.cuda.synchronize()
    return torch.cuda.memory_allocated()
