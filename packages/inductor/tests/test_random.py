"""Random words in kernels: eager's patterns, and programs that reserve their numbers."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from flambeau_inductor import compile_graph
from flambeau_inductor.options import InductorOptions
from flambeau_prims.builder import Builder
from flambeau_prims.check import check_graph
from flambeau_prims.evaluate import run_graph
from flambeau_prims.gpu_draws import reserve_random
from flambeau_prims.graph import Graph, Node, Value
from flambeau_prims.philox import PATTERNS, random_words
from flambeau_prims.spec import Spec
from flambeau_runtime import RuntimeOptions, load, program_json, random_state
from flambeau_runtime.check import check_program
from flambeau_runtime.program import Reserve

CPU = torch.device("cpu")
STATE = Spec.of((2,), dtype=torch.int64)
OPTIONS = InductorOptions(debug_checks=True)


def drawing(shape: tuple[int, ...], pattern: str, threads: int) -> Graph:
    """Every word of each element, and its place among those that share them."""
    state = Value("state", STATE)
    b = Builder([], ["state"])
    words = range(PATTERNS[pattern].words)
    outputs = [b.random_words(state, shape, threads, pattern, word, CPU) for word in words]
    outputs.append(b.random_member(shape, threads, pattern, CPU))
    return Graph([state], b.nodes, list(outputs))


@pytest.mark.parametrize("pattern", PATTERNS)
def test_words_equal_the_reference(pattern: str) -> None:
    for shape, threads in (
        ((), 256), ((1,), 256), ((0, 3), 256), ((7, 3), 256), ((1000,), 1024), ((5, 513), 256),
        ((4096, 4), 512),
    ):  # fmt: skip
        graph = drawing(shape, pattern, threads)
        check_graph(graph)
        state = torch.tensor([-123456789012345, 4 * (2**33 + 17)])
        expected = run_graph(graph, [state])
        got = load(compile_graph(graph, OPTIONS))(state)
        for mine, reference in zip(got, expected, strict=True):
            assert torch.equal(mine, reference), (pattern, shape)


def test_words_of_a_permuted_draw_and_in_a_reduction() -> None:
    state = Value("state", STATE)
    b = Builder([], ["state"])
    words = b.cast(b.random_words(state, (40, 70), 512, "adjacent8", 0, CPU), torch.float64)
    graph = Graph([state], b.nodes, [b.clone(b.permute(words, (1, 0))), b.sum(words, (1,))])
    given = torch.tensor([3, 8])
    expected = run_graph(graph, [given])
    for mine, reference in zip(load(compile_graph(graph, OPTIONS))(given), expected, strict=True):
        assert torch.equal(mine, reference)


class Generators(dict):
    """In place of torch's: one generator of a GPU that is not there."""

    def __init__(self) -> None:
        self.offset = 40
        self[0] = self

    def get_offset(self) -> int:
        return self.offset

    def set_offset(self, offset: int) -> None:
        self.offset = offset

    def initial_seed(self) -> int:
        return 2**64 - 5


def reserving(count: int) -> Graph:
    """Two draws, of which the second is read twice; a state that leaves the program."""
    b = Builder([], [])
    outputs = []
    for number in range(2):
        node = Node(reserve_random, (4 * number + 3, torch.device("cuda:0")), {}, ())
        state = Value(f"state{number}", STATE, node)
        node.outputs = (state,)
        b.nodes.append(node)
        words = b.random_words(state, (count,), 256, "strided", 0, CPU)
        outputs += [b.mul(b.cast(words, torch.float64), 0.5), b.sum(words, (0,))]
    return Graph([], b.nodes, [*outputs, state])


@pytest.mark.parametrize("executor", ["c", "python"])
def test_a_program_reserves_its_numbers(executor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = compile_graph(reserving(700), OPTIONS)
    check_program(program)
    assert program_json.loads(program_json.dumps(program)) == program
    reserves = [step for step in program.steps if isinstance(step, Reserve)]
    assert [step.increment for step in reserves] == [3, 7]
    generators = Generators()
    monkeypatch.setattr(torch.cuda, "default_generators", generators)
    call = load(program, RuntimeOptions(executor=executor))
    for start in (40, 52):
        *drawn, state = call()
        assert state.tolist() == [-5, start + 4]
        for number, offset in enumerate((start, start + 4)):
            words = random_words(torch.tensor([-5, offset]), (700,), 256, "strided", 0, CPU)
            assert torch.equal(drawn[2 * number], words.double() * 0.5)
            assert torch.equal(drawn[2 * number + 1], words.sum(0))
    assert generators.offset == 64


def test_threads_draw_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(Generators):
        def get_offset(self) -> int:
            offset = super().get_offset()
            time.sleep(0.001)  # lets other threads run
            return offset

    generators = Slow()
    monkeypatch.setattr(torch.cuda, "default_generators", generators)
    call = load(compile_graph(reserving(3), OPTIONS))
    with ThreadPoolExecutor(4) as pool:
        states = list(pool.map(lambda _: call()[-1][1].item(), range(40)))
    assert len(set(states)) == 40
    assert generators.offset == 40 + 12 * 40


def test_a_recorded_call_draws_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    generators = Generators()
    monkeypatch.setattr(torch.cuda, "default_generators", generators)
    call = load(compile_graph(reserving(3), OPTIONS))
    reservations = random_state.Reservations(shared=False)
    with random_state.recorded(reservations):
        *_, state = call()
    assert state.tolist() == [0, 0]
    assert (reservations.offsets, reservations.total) == ([0, 4], 12)
    assert generators.offset == 40
    *_, state = call()
    assert state.tolist() == [-5, 44]
