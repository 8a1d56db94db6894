"""Compile four programs and show what was gained.

    python -m examples.demo [--against-torch] [--quick]

Each program's first call compiles into an empty cache; then eager and compiled calls alternate, and
medians are shown. "error" is the largest difference from a float64 run, of the compiled program and
(in brackets) of eager.
"""

from __future__ import annotations

import argparse
import copy
import os
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from examples.models import ResNet18, bert, sin_cos

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass
class Case:
    """One program of the demo.

    `program` is what gets compiled; `call(compiled)` runs it once on this case's inputs and returns
    the tensors to compare; `reference()` returns the same tensors computed in float64.
    """

    name: str
    program: Any
    call: Callable[[Any], list[torch.Tensor]]
    reference: Callable[[], list[torch.Tensor]]


@dataclass
class Outcome:
    """Seconds and errors measured for one case under one compiler."""

    first_call: float = 0.0
    eager: list[float] = field(default_factory=list)
    compiled: list[float] = field(default_factory=list)
    error: float = 0.0
    eager_error: float = 0.0


def tutorial() -> Case:
    """torch.sin(torch.cos(x)) on a million elements."""
    x = torch.randn(1000, 1000)
    return Case(
        "sin(cos(x)), 1M",
        sin_cos,
        lambda f: [f(x)],
        lambda: [sin_cos(x.double())],
    )


def resnet() -> Case:
    """ResNet-18 forward, one 224 x 224 image."""
    model = ResNet18().eval()
    x = torch.randn(1, 3, 224, 224)

    def call(f: Any) -> list[torch.Tensor]:
        with torch.no_grad():
            return [f(x)]

    def reference() -> list[torch.Tensor]:
        with torch.no_grad():
            return [copy.deepcopy(model).double()(x.double())]

    return Case("ResNet-18 forward, 1 x 224²", model, call, reference)


def bert_forward(quick: bool) -> Case:
    """BERT-base forward on 4 sequences of 64 tokens."""
    model = (bert(layers=2) if quick else bert()).eval()
    tokens = torch.randint(0, 30522, (4, 64))

    def call(f: Any) -> list[torch.Tensor]:
        with torch.no_grad():
            return [f(tokens).last_hidden_state]

    def reference() -> list[torch.Tensor]:
        with torch.no_grad():
            return [copy.deepcopy(model).double()(tokens).last_hidden_state]

    return Case("BERT-base forward, 4 x 64", model, call, reference)


def bert_training() -> Case:
    """Forward and backward of a small BERT; the gradients are compared."""
    model = bert(layers=2, hidden=128, heads=2, vocabulary=1000).train()
    tokens = torch.randint(0, 1000, (8, 64))
    watched = ["encoder.layer.0.attention.self.query.weight", "encoder.layer.1.output.dense.weight"]

    def step(f: Any, of: torch.nn.Module) -> list[torch.Tensor]:
        torch.manual_seed(0)
        of.zero_grad()
        f(tokens).last_hidden_state.square().mean().backward()
        return [of.get_parameter(name).grad.clone() for name in watched]

    def reference() -> list[torch.Tensor]:
        double = copy.deepcopy(model).double()
        return step(double, double)

    return Case("small BERT training step, 8 x 64", model, lambda f: step(f, model), reference)


def measure(case: Case, compile_: Callable[[Any], Any], rounds: int) -> Outcome:
    """First call, then `rounds` alternations of eager and compiled."""
    outcome = Outcome()
    started = time.perf_counter()
    compiled = compile_(case.program)
    result = case.call(compiled)
    outcome.first_call = time.perf_counter() - started
    expected = case.reference()
    outcome.error = largest_difference(result, expected)
    outcome.eager_error = largest_difference(case.call(case.program), expected)
    for _ in range(rounds):
        for program, seconds in ((case.program, outcome.eager), (compiled, outcome.compiled)):
            started = time.perf_counter()
            case.call(program)
            seconds.append(time.perf_counter() - started)
    return outcome


def largest_difference(found: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    """The largest absolute difference over all tensors."""
    pairs = zip(found, expected, strict=True)
    return max((a.double() - b.double()).abs().max().item() for a, b in pairs)


def main() -> None:
    """Run the demo and print its table."""
    parser = argparse.ArgumentParser(prog="demo", description=__doc__.partition("\n")[0])
    parser.add_argument("--against-torch", action="store_true", help="add torch.compile's columns")
    parser.add_argument("--quick", action="store_true", help="2 layers of BERT, fewer rounds")
    arguments = parser.parse_args()
    console = Console(width=max(110, Console().width))
    makers = [tutorial, resnet, lambda: bert_forward(arguments.quick), bert_training]
    rounds = 5 if arguments.quick else 15

    table = Table(title="Flambeau", caption="ms per call: medians of alternating calls")
    for heading in (
        "program",
        "first call s",
        "eager ms",
        "compiled ms",
        "speed-up",
        "error (eager)",
    ):
        justify = "left" if heading == "program" else "right"
        table.add_column(heading, justify=justify, no_wrap=True)
    if arguments.against_torch:
        for heading in ("torch.compile first s", "torch.compile ms"):
            table.add_column(heading, justify="right")

    with tempfile.TemporaryDirectory() as cache, progress_bar(console) as progress:
        os.environ["FLAMBEAU_CACHE_DIR"] = os.path.join(cache, "flambeau")
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(cache, "inductor")
        task = progress.add_task("importing", total=len(makers))
        import flambeau

        for make in makers:
            torch.manual_seed(0)
            case = make()
            progress.update(task, description=f"{case.name}: flambeau")
            outcome = measure(case, flambeau.compile, rounds)
            row = outcome_row(case, outcome)
            if arguments.against_torch:
                progress.update(task, description=f"{case.name}: torch.compile")
                theirs = measure(case, torch.compile, rounds)
                row += [f"{theirs.first_call:.1f}", milliseconds(theirs.compiled)]
            table.add_row(*row)
            progress.advance(task)
    console.print(table)


def progress_bar(console: Console) -> Progress:
    """A spinner, what is being compiled, a bar and the time."""
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description:44}"),
        BarColumn(),
        TimeElapsedColumn(),
        console=console,
    )


def outcome_row(case: Case, outcome: Outcome) -> list[str]:
    """The table's cells for one case."""
    speed_up = statistics.median(outcome.eager) / statistics.median(outcome.compiled)
    return [
        case.name,
        f"{outcome.first_call:.2f}",
        milliseconds(outcome.eager),
        milliseconds(outcome.compiled),
        f"{speed_up:.2f}x",
        f"{outcome.error:.1e} ({outcome.eager_error:.1e})",
    ]


def milliseconds(seconds: list[float]) -> str:
    """The median, in ms."""
    return f"{statistics.median(seconds) * 1e3:.3f}"


if __name__ == "__main__":
    main()
