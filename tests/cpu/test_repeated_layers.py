"""Equal layers are lowered and scheduled once, whatever their number, and compute what eager does.

The work is counted in calls of graphs that are scheduled, not timed. A layer that differs is seen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import flambeau
from flambeau import program_compiler
from flambeau_autograd import pipeline
from flambeau_inductor import compile as inductor
from flambeau_inductor.repeat_program import map_names
from flambeau_prims.graph import map_values
from flambeau_runtime.check import check_program
from flambeau_runtime.program import Free, Program

if TYPE_CHECKING:
    from collections.abc import Callable

WIDTH = 16
ROWS = 6


class Block(nn.Module):
    """A residual block with two products, a norm and a gate."""

    def __init__(self, *, width: int = 24, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, width, bias=False)
        self.down = nn.Linear(width, WIDTH)
        self.dropout = nn.Dropout(dropout)
        self.power = 1.0

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        y = torch.nn.functional.silu(self.up(self.norm(x)) * self.power)
        return x + self.dropout(self.down(y)) * scale


class Attention(nn.Module):
    """Causal attention with a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).view(2, -1, 3, 2, WIDTH // 2).unbind(2)
        heads = (each.transpose(1, 2) for each in (q, k, v))
        y = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        return x + self.out(y.transpose(1, 2).flatten(-2)) * scale


class Statistics(nn.Module):
    """A norm that writes to its buffers in each call, behind a product."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.linear(x).flatten(0, -2))
        return x + y.view_as(x) * scale


class Encoder(nn.TransformerEncoderLayer):
    """torch's encoder layer, whose relu the backward asks for the places of its zeros."""

    def __init__(self) -> None:
        super().__init__(WIDTH, 2, 24, dropout=0.0, batch_first=True)

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * scale


class Convolution(nn.Module):
    """A residual convolution with a relu."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(WIDTH, WIDTH, 3, padding=1)

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return x + self.conv(x.mT).relu().mT * scale


class Layers(nn.Module):
    """Layers one behind the other."""

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.register_buffer("scale", torch.full((WIDTH,), 0.25))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x, self.scale)
        return self.norm(x)


def plain(count: int) -> Layers:
    """Equal blocks."""
    return Layers([Block() for _ in range(count)])


def odd_in_the_middle(count: int) -> Layers:
    """Equal blocks but for the attribute of one, a number that is in its kernel."""
    layers = plain(count)
    layers.layers[count // 2].power = 1.5
    return layers


def wider_in_the_middle(count: int) -> Layers:
    """Equal blocks but for the width of one."""
    layers = plain(count)
    layers.layers[count // 2] = Block(width=40)
    return layers


def encoders(count: int) -> Layers:
    """Equal encoder layers."""
    return Layers([Encoder() for _ in range(count)])


def convolutions(count: int) -> Layers:
    """Equal convolutions."""
    return Layers([Convolution() for _ in range(count)])


def shared_weights(count: int) -> Layers:
    """One block, used again and again."""
    return Layers([Block()] * count)


def shared_scale(count: int) -> Layers:
    """Blocks that share a parameter; its gradient is the sum over all of them."""
    layers = plain(count)
    scale = layers.scale
    del layers.scale
    layers.scale = nn.Parameter(scale)
    return layers


def every_second_shared(count: int) -> Layers:
    """Two blocks in turn."""
    return Layers([Block(), Block()] * (count // 2))


def every_second_attends(count: int) -> Layers:
    """Attention and blocks in turn, as transformers have them."""
    pairs = ([Attention(), Block()] for _ in range(count // 2))
    return Layers([layer for pair in pairs for layer in pair])


def writes_statistics(count: int) -> Layers:
    """Layers with batch norm."""
    return Layers([Statistics() for _ in range(count)])


def long_skips(count: int) -> Layers:
    """The results of all layers are summed behind the last."""

    class Skips(Layers):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            total = x
            results = []
            for layer in self.layers:
                x = layer(x, self.scale)
                results.append(x)
            for result in reversed(results):
                total = total * 0.5 + result
            return self.norm(total)

    return Skips([Block() for _ in range(count)])


def returns_all(count: int) -> Layers:
    """The results of all layers are returned."""

    class Results(Layers):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            results = []
            for layer in self.layers:
                x = layer(x, self.scale)
                results.append(x)
            return (*results, self.norm(x))

    return Results([Block() for _ in range(count)])


class Tower(nn.Module):
    """Equal layers, all of whose results are kept."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.inner = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(count)])
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, results: list[torch.Tensor]) -> torch.Tensor:
        y = x
        for layer in self.inner:
            y = layer(y).relu()
            results.append(y)
        return x + self.out(y).tanh()


def nested(count: int) -> Layers:
    """Equal layers of equal layers; all results are returned, those of the inner ones, too."""

    class Towers(Layers):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            results: list[torch.Tensor] = []
            for layer in self.layers:
                x = layer(x, results)
            return (*results, self.norm(x))

    return Towers([Tower(12) for _ in range(min(count, 12))])


def counts_calls(count: int) -> Layers:
    """One block that counts its calls: one kernel adds all of them, outside of what repeats."""

    class Counting(Block):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros((), dtype=torch.long))

        def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return super().forward(x, scale)

    return Layers([Counting()] * count)


STACKS: dict[str, Callable[[int], Layers]] = {
    make.__name__: make
    for make in (
        plain, odd_in_the_middle, wider_in_the_middle, encoders, convolutions, shared_weights,
        shared_scale, every_second_shared, every_second_attends, writes_statistics, long_skips,
        returns_all, nested, counts_calls,
    )
}  # fmt: skip


@pytest.fixture
def scheduled(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of calls of the graphs that are scheduled."""
    sizes: list[int] = []
    schedule_graph = inductor.schedule_graph

    def counting(graph: Any, *arguments: Any, **rest: Any) -> Any:
        sizes.append(len(graph.nodes))
        return schedule_graph(graph, *arguments, **rest)

    monkeypatch.setattr(inductor, "schedule_graph", counting)
    return sizes


def flat(result: Any) -> list[torch.Tensor]:
    return [result] if isinstance(result, torch.Tensor) else list(result)


def check_against_eager(model: nn.Module, compiled: Any, x: torch.Tensor, trains: bool) -> None:
    """Results, gradients and buffers of one call, with a float64 model as the reference."""
    state = {name: value.clone() for name, value in model.state_dict().items()}
    outcomes = []
    for program in (model, compiled):
        model.load_state_dict(state)
        model.zero_grad()
        with torch.set_grad_enabled(trains):
            results = flat(program(x))
        if trains:
            torch.manual_seed(3)
            sum((each * torch.randn_like(each)).sum() for each in results).backward()
        gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        buffers = [value.clone() for value in model.buffers()]
        outcomes.append([*(each.detach() for each in results), *gradients, *buffers])
    eager, ours = outcomes
    assert len(eager) == len(ours)
    for a, b in zip(eager, ours, strict=True):
        assert a.stride() == b.stride()
        torch.testing.assert_close(b, a, rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("name", STACKS)
def test_equal_to_eager(name: str, trains: bool) -> None:
    torch.manual_seed(0)
    model = STACKS[name](20)
    compiled = flambeau.compile(model, fullgraph=True)
    for _ in range(2):
        check_against_eager(model, compiled, torch.randn(2, ROWS, WIDTH), trains)


@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("name", ["plain", "odd_in_the_middle", "wider_in_the_middle"])
def test_work_does_not_grow(name: str, trains: bool, scheduled: list[int]) -> None:
    """Twelve layers more are scheduled for nothing."""
    counts = []
    for layers in (32, 44):
        torch.manual_seed(0)
        model = STACKS[name](layers)
        compiled = flambeau.compile(model, fullgraph=True)
        scheduled.clear()
        check_against_eager(model, compiled, torch.randn(2, ROWS, WIDTH), trains)
        counts.append(sum(scheduled))
    assert counts[0] == counts[1]


@pytest.mark.parametrize("trains", [False, True])
def test_dynamic_sizes(trains: bool, scheduled: list[int]) -> None:
    torch.manual_seed(0)
    model = plain(24)
    compiled = flambeau.compile(model, fullgraph=True, dynamic=True)
    check_against_eager(model, compiled, torch.randn(2, ROWS, WIDTH), trains)
    count = len(scheduled)
    for rows in (3, 17):
        check_against_eager(model, compiled, torch.randn(3, rows, WIDTH), trains)
    assert len(scheduled) == count


def test_each_layer_draws_its_own_mask() -> None:
    torch.manual_seed(0)
    model = Layers([Block(dropout=0.5) for _ in range(24)])
    compiled = flambeau.compile(model, fullgraph=True)
    x = torch.randn(2, ROWS, WIDTH)
    outcomes = []
    for program in (model, compiled):
        model.zero_grad()
        torch.manual_seed(7)
        result = program(x)
        state = torch.get_rng_state()
        result.square().sum(-1).sqrt().sum().backward()
        outcomes.append((result.detach(), state, [p.grad.clone() for p in model.parameters()]))
    torch.testing.assert_close(outcomes[1], outcomes[0], rtol=2e-3, atol=2e-4)


def test_each_layer_keeps_its_guards() -> None:
    torch.manual_seed(0)
    model = plain(24)
    compiled = flambeau.compile(model)
    x = torch.randn(2, ROWS, WIDTH)
    with torch.no_grad():
        before = compiled(x)
        model.layers[13].power = 3.0
        after = compiled(x)
        assert not torch.equal(before, after)
        torch.testing.assert_close(after, model(x))


# The Program


def canonical(program: Program) -> list[str]:
    """The steps with tensors numbered in the order of their definition. Frees are left out: their
    order behind a step is free.
    """
    numbers = {name: name for name in program.inputs}
    shapes = {
        tensor.name: (tensor.shape, tensor.stride, tensor.dtype) for tensor in program.tensors
    }

    def number(name: str) -> str:
        return numbers.setdefault(name, f"t{len(numbers)}") + f"{shapes.get(name)}"

    steps = [step for step in program.steps if not isinstance(step, Free)]
    texts = [f"{map_names(step, number)} {getattr(step, 'lines', '')}" for step in steps]
    return [*texts, *(numbers.get(str(out), str(out)) for out in program.outputs)]


@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("name", ["plain", "every_second_attends", "odd_in_the_middle"])
def test_program_is_that_of_the_whole_graph(
    name: str, trains: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_graph = program_compiler.compile_graph
    extended = []

    def compile_both(graph: Any, options: Any, **arguments: Any) -> Any:
        program = compile_graph(graph, options, **arguments)
        check_program(program)
        with monkeypatch.context() as patch:
            patch.setattr(inductor, "shorten", lambda graph: None)
            whole = compile_graph(graph, options, **arguments)
        extended.append((program, whole))
        return program

    monkeypatch.setattr(program_compiler, "compile_graph", compile_both)
    torch.manual_seed(0)
    model = STACKS[name](26)
    compiled = flambeau.compile(model, fullgraph=True)
    check_against_eager(model, compiled, torch.randn(2, ROWS, WIDTH), trains)
    assert len(extended) == 1 + trains
    for program, whole in extended:
        assert any("_" in tensor.name for tensor in program.tensors)
        assert canonical(program) == canonical(whole)
        assert len(program.steps) == len(whole.steps)
        assert program.mutated == whole.mutated
        assert program.private_outputs == whole.private_outputs


# The partition


@pytest.fixture
def derived(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, Any]]:
    """Of each captured graph the calls that are traced, and what the graph becomes."""
    results: list[tuple[int, Any]] = []
    calls: list[int] = []
    trace, derive = pipeline.trace, pipeline.derive

    def counting(gm: Any, *arguments: Any, **rest: Any) -> Any:
        calls.append(len(gm.graph.nodes))
        return trace(gm, *arguments, **rest)

    def keeping(*arguments: Any) -> Any:
        calls.clear()
        result = derive(*arguments)
        results.append((sum(calls), result))
        return result

    monkeypatch.setattr(pipeline, "trace", counting)
    monkeypatch.setattr(pipeline, "derive", keeping)
    return results


@pytest.mark.parametrize(
    "name", ["plain", "encoders", "convolutions", "shared_weights", "shared_scale"]
)
def test_trace_does_not_grow(name: str, derived: list[tuple[int, Any]]) -> None:
    """Twelve layers more are traced, transformed and parted for nothing."""
    for layers in (32, 44):
        model = STACKS[name](layers)
        compiled = flambeau.compile(model, fullgraph=True)
        check_against_eager(model, compiled, torch.randn(2, ROWS, WIDTH), True)
    (few, _), (many, _) = derived
    assert few == many


def text_of(graph: Any) -> list[str]:
    """The calls of a graph and what it returns, its Values numbered in the order of their use."""
    numbers: dict[Any, str] = {}

    def number(value: Any) -> str:
        return numbers.setdefault(value, f"v{len(numbers)}: {value.spec}")

    lines = []
    for node in graph.nodes:
        args = map_values(node.args, number), map_values(node.kwargs, number)
        outs = [None if out is None else number(out) for out in node.outputs]
        lines.append(f"{outs} = {node.op}({args})  # {node.where}")
    outputs = [numbers.get(out, str(out)) for out in graph.outputs]
    kept = len(outputs) - graph.private_outputs
    return [*lines, *outputs[:kept], *sorted(outputs[kept:])]  # saved tensors have no order


@pytest.mark.parametrize("count", [11, 12, 24])
@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("layer", [Block, Attention, Encoder, lambda: Block(dropout=0.5)])
def test_partition_is_that_of_the_whole_graph(
    layer: Callable[[], nn.Module],
    requires_grad: bool,
    count: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    texts: list[Any] = []
    summarize = pipeline.summarize

    def noting(part: Any) -> Any:
        # Now: the compiler rewrites graphs.
        summary = summarize(part)
        lines = text_of(part.forward), text_of(part.backward)
        texts.append((lines, part.saved, summary.recomputed, len(summary.saved)))
        return summary

    monkeypatch.setattr(pipeline, "summarize", noting)
    x = torch.randn(2, ROWS, WIDTH, requires_grad=requires_grad)
    for shorten in (pipeline.shorten_module, lambda gm, examples: None):
        monkeypatch.setattr(pipeline, "shorten_module", shorten)
        model = Layers([layer() for _ in range(count)])
        flambeau.compile(model, fullgraph=True, options={"graph_cache": False})(x)
    assert texts[0] == texts[1]


@pytest.mark.parametrize("name", ["plain", "encoders", "convolutions", "shared_scale"])
def test_trace_does_not_grow_from_eleven_on(name: str, derived: list[tuple[int, Any]]) -> None:
    """Stacks of a usual model: fewer layers are kept than of many."""
    for layers in (11, 12):
        torch.manual_seed(0)
        model = STACKS[name](layers)
        compiled = flambeau.compile(model, fullgraph=True)
        check_against_eager(model, compiled, torch.randn(2, ROWS, WIDTH), True)
    (few, _), (many, _) = derived
    assert few == many


@pytest.mark.parametrize("name", ["plain", "shared_scale"])
def test_second_derivatives(name: str) -> None:
    torch.manual_seed(0)
    model = STACKS[name](20).double()
    compiled = flambeau.compile(model, fullgraph=True)
    x = torch.randn(2, ROWS, WIDTH, dtype=torch.float64, requires_grad=True)
    outcomes = []
    for program in (model, compiled):
        model.zero_grad()
        gradients = torch.autograd.grad(
            program(x).square().sum(), [x, model.layers[11].up.weight], create_graph=True
        )
        sum(each.square().sum() for each in gradients).backward()
        second = [p.grad for p in model.parameters()]
        outcomes.append([*gradients, *(None if p is None else p.clone() for p in second)])
    torch.testing.assert_close(outcomes[1], outcomes[0], rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("layer", [0, 9, 19])
def test_writes_before_the_backward_are_noticed(layer: int) -> None:
    """The weights of each layer are checked, those of layers that were left out, too."""
    torch.manual_seed(0)
    model = plain(20)
    compiled = flambeau.compile(model, fullgraph=True)
    x = torch.randn(2, ROWS, WIDTH)
    for program in (model, compiled):
        result = program(x).sum()
        with torch.no_grad():
            model.layers[layer].down.weight.mul_(1.5)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            result.backward()


@pytest.mark.parametrize("frozen", [range(7), range(7, 13), range(0, 20, 2), (11,)])
def test_frozen_layers(frozen: Any) -> None:
    torch.manual_seed(0)
    model = plain(32)
    for at in frozen:
        model.layers[at].requires_grad_(False)
    for name in ("up", "norm"):
        getattr(model.layers[5], name).requires_grad_(False)
    compiled = flambeau.compile(model, fullgraph=True)
    check_against_eager(model, compiled, torch.randn(2, ROWS, WIDTH), True)


def test_gradients_of_one_result_only() -> None:
    """A backward without some tangents is made of the whole graph."""

    class Two(Layers):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            x = super().forward(x)
            return x.sin(), x.cos()

    torch.manual_seed(0)
    model = Two([Block() for _ in range(20)])
    compiled = flambeau.compile(model, fullgraph=True)
    x = torch.randn(2, ROWS, WIDTH)
    outcomes = []
    for program in (model, compiled):
        for number in (0, 1):
            model.zero_grad()
            program(x)[number].square().sum().backward()
            outcomes.append([p.grad.clone() for p in model.parameters()])
    torch.testing.assert_close(outcomes[2:], outcomes[:2], rtol=2e-3, atol=2e-4)
