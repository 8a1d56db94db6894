"""Programs on a GPU for entries that one process stores and another one finds.

`python -m tests.programs.stored_on_gpu`, twice with one cache directory; names of programs may
follow. Each prints, as JSON, what became of the calls: "stored" where the entry was read, "capture"
where it was not; and which parts of the compiler were imported. All results are compared with
eager's.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import flambeau
from flambeau.report import report_of
from flambeau_capture.compiled import state_of

Calls = Callable[[Callable[..., Any]], Any]
"""Calls a function, compiled or not, and gives what is compared."""
PROGRAMS: dict[str, tuple[Callable[[], Callable[..., Any]], Calls]] = {}
COMPILER = {
    "flambeau_capture.interpreter.capture", "flambeau_autograd.pipeline",
    "flambeau_inductor.compile",
}  # fmt: skip
OPTIONS: dict[str, dict[str, Any]] = {
    "reduced_overhead": {"mode": "reduce-overhead"},
    "batches": {"dynamic": True},
}


def program(calls: Calls) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    def keep(make: Callable[[], Any]) -> Callable[[], Any]:
        PROGRAMS[make.__name__] = make, calls
        return make

    return keep


def tensor(*shape: int, **options: Any) -> torch.Tensor:
    return torch.randn(shape, device="cuda", **options)


def infers(function: Callable[..., Any]) -> Any:
    with torch.no_grad():
        return [function(tensor(6, 8)) for _ in range(4)]


def trains(function: Any) -> Any:
    """Steps of an optimizer: their losses, and the gradients of the last."""
    optimizer = torch.optim.SGD(function.parameters(), lr=0.1)
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = function(tensor(6, 8)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses, [parameter.grad for parameter in function.parameters()]


def trains_by_batches(function: Any) -> Any:
    found = []
    for rows in (3, 5, 9):
        x = tensor(rows, 8, requires_grad=True)
        function(x).sum().backward()
        found.append(x.grad)
    return found


def differentiates_twice(function: Any) -> Any:
    x = tensor(6, 8, requires_grad=True)
    (first,) = torch.autograd.grad(function(x).pow(3).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    return first.detach(), second


def leaves_a_result(function: Any) -> Any:
    x = tensor(6, 8, requires_grad=True)
    function(x)[0].sum().backward()
    return x.grad


def draws_where_it_is_not_aligned(function: Any) -> Any:
    x = tensor(49)
    return function(x[:48]), function(x[1:])


def layers(*more: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), *more, nn.LayerNorm(16)).cuda()


@program(infers)
def pointwise() -> Any:
    return lambda x: torch.sin(x).softmax(-1) * 2


@program(infers)
def module() -> Any:
    return layers()


@program(infers)
def reduced_overhead() -> Any:
    return layers()


@program(trains)
def training() -> Any:
    return layers()


@program(trains)
def training_with_dropout() -> Any:
    return layers(nn.Dropout(0.3))


@program(trains)
def training_under_autocast() -> Any:
    class Cast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = layers(nn.Linear(16, 16))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cuda", torch.bfloat16):
                return self.inner(x).float()

    return Cast()


@program(trains)
def recurrent_network() -> Any:
    class Encodes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = nn.GRU(8, 8, batch_first=True).cuda()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cuda", torch.bfloat16):
                return self.network(x[None].sin())[0].float().relu()

    return Encodes()


@program(trains)
def attention() -> Any:
    class Attends(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.heads = nn.Linear(8, 24).cuda()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = self.heads(x).view(1, 6, 3, 2, 4).permute(2, 0, 3, 1, 4)
            return functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    return Attends()


@program(trains)
def convolution() -> Any:
    class Convolves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).cuda()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x.view(1, 2, 4, 6))

    return Convolves()


@program(trains_by_batches)
def batches() -> Any:
    return layers()


@program(differentiates_twice)
def second_derivatives() -> Any:
    return lambda x: torch.tanh(x) * x


@program(leaves_a_result)
def results_without_gradients() -> Any:
    return lambda x: (x.sin(), x.exp(), x.cos())


@program(draws_where_it_is_not_aligned)
def dropout() -> Any:
    return lambda x: functional.dropout(x * 2, 0.4, True)


@program(infers)
def random_numbers() -> Any:
    return lambda x: x + torch.rand_like(x) + torch.randn(8, device="cuda")


@program(infers)
def rows_that_depend_on_data() -> Any:
    return lambda x: x[x[:, 0] > 0].exp() * 2


@program(infers)
def number_of_the_program() -> Any:
    return lambda x: x.cpu().sum() + x.sum().cpu()


@program(infers)
def writes_to_its_input() -> Any:
    return lambda x: x.mul_(2).t()


def outcome(name: str) -> str:
    """What became of the calls, compared with eager's."""
    make, calls = PROGRAMS[name]
    found = []
    for options in (None, OPTIONS.get(name, {})):
        torch.manual_seed(0)
        function = make()
        if options is not None:
            function = flambeau.compile(function, **options)
        torch.manual_seed(1)
        found.append(calls(function))
        state = torch.cuda.get_rng_state()
        found.append(state)
    torch.testing.assert_close(found[2], found[0], rtol=2e-2, atol=2e-3)
    assert torch.equal(found[3], found[1]), "the generator's state"
    state = state_of(getattr(function, "_compiled", function))
    kinds = [event.kind for event in state.events]
    stored = [event.entry.stored for event in state.events if event.entry is not None]
    graphs = report_of(function).graphs
    stored += [info.stored for graph in graphs for _, info in graph.piece_entries()]
    launches = [launch() for graph in graphs for launch in graph.launches]
    return f"{' '.join(kinds)}: {'; '.join(stored)}: {len(launches)} launches"


def main() -> None:
    results = {}
    for name in sys.argv[1:] or PROGRAMS:
        try:
            results[name] = outcome(name)
        except Exception as error:  # for the test to show
            results[name] = f"{type(error).__name__}: {error}"
    results["imported"] = " ".join(COMPILER & sys.modules.keys())
    print(json.dumps(results))


if __name__ == "__main__":
    main()
