"""Stances: what compiled callables do in place of compiling, for the process, a block, or a
decorated call.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch

import flambeau
from flambeau.compiler import is_compiling, set_stance
from flambeau_capture.stance import STANCES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(autouse=True)
def _default_afterwards() -> Iterator[None]:
    yield
    set_stance("default")
    torch.compiler.set_stance("default")


class Counting:
    """A backend that counts its graphs and runs them as they are."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        self.graphs += 1
        return gm.forward


def how(x: torch.Tensor) -> str:
    return "compiled" if is_compiling() else "eager"


def pair() -> tuple[Callable[[torch.Tensor], tuple[str, torch.Tensor]], Counting]:
    """A compiled function that says how it ran, and its backend."""
    backend = Counting()
    return flambeau.compile(lambda x: (how(x), x.sin() + 1), backend=backend), backend


def ran(function: Callable[..., Any], size: int = 3) -> str:
    x = torch.randn(size)
    said, found = function(x)
    torch.testing.assert_close(found, x.sin() + 1)
    return said


def in_thread(function: Callable[[], Any]) -> Any:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join()
    return results[0]


def test_force_eager_concerns_what_is_compiled_already() -> None:
    function, backend = pair()
    assert ran(function) == "compiled"
    with set_stance("force_eager"):
        assert ran(function) == "eager"
        assert ran(function, 4) == "eager"
        with set_stance("default"):
            assert ran(function) == "compiled"
        assert ran(function) == "eager"
    assert ran(function) == "compiled"
    assert backend.graphs == 1


def test_as_a_call_it_holds_for_the_process() -> None:
    function, _ = pair()
    assert ran(function) == "compiled"
    set_stance("force_eager")
    assert ran(function) == "eager"
    assert in_thread(lambda: ran(function)) == "eager"
    set_stance("default")
    assert ran(function) == in_thread(lambda: ran(function)) == "compiled"


def test_a_block_is_its_threads_own() -> None:
    function, _ = pair()
    with set_stance("force_eager"):
        assert ran(function) == "eager"
        assert in_thread(lambda: ran(function)) == "compiled"


def test_a_block_is_its_tasks_own() -> None:
    function, _ = pair()
    found: dict[str, str] = {}

    async def inside(entered: asyncio.Event, done: asyncio.Event) -> None:
        with set_stance("force_eager"):
            entered.set()
            await done.wait()
            found["inside"] = ran(function)

    async def main() -> None:
        entered, done = asyncio.Event(), asyncio.Event()
        task = asyncio.create_task(inside(entered, done))
        await entered.wait()
        found["outside"] = ran(function)
        done.set()
        await task

    asyncio.run(main())
    assert found == {"inside": "eager", "outside": "compiled"}


def test_as_a_decorator() -> None:
    function, _ = pair()

    @set_stance("force_eager")
    def decorated(size: int) -> str:
        """Doc."""
        return ran(function, size)

    assert ran(function) == "compiled"
    assert decorated(3) == "eager"
    assert ran(function) == "compiled"
    assert (decorated.__name__, decorated.__doc__) == ("decorated", "Doc.")


def test_a_block_that_raises_ends_the_stance() -> None:
    function, _ = pair()
    with pytest.raises(KeyError), set_stance("force_eager"):
        raise KeyError
    assert ran(function) == "compiled"


def test_eager_on_recompile_serves_what_is_compiled() -> None:
    function, backend = pair()
    with set_stance("eager_on_recompile"):
        assert ran(function) == "eager"
    assert ran(function) == "compiled"
    with set_stance("eager_on_recompile"):
        assert ran(function) == "compiled"
        for _ in range(20):
            assert ran(function, 5) == "eager"
    assert backend.graphs == 1
    assert ran(function, 5) == "compiled"
    assert len(flambeau.explain(function).events) < 8, "one event for all calls that ran eagerly"


def test_fail_on_recompile_names_the_guards() -> None:
    function, _ = pair()
    with pytest.raises(RuntimeError, match="nothing is compiled"), set_stance("fail_on_recompile"):
        function(torch.randn(3))
    assert ran(function) == "compiled"
    with set_stance("fail_on_recompile"):
        assert ran(function) == "compiled"
        with pytest.raises(RuntimeError, match=r"L\['x'\] has shape \[6\], had \[3\]"):
            function(torch.randn(6))


@pytest.mark.parametrize("stance", ["eager_then_compile", "aot_eager_then_compile"])
def test_the_second_call_is_compiled_as_dynamic_as_the_two_differ(stance: str) -> None:
    function, backend = pair()
    with set_stance(stance):
        first = ran(function, 3)
        assert first == ("eager" if stance == "eager_then_compile" else "compiled")
        assert backend.graphs == 0
        for size in (4, 9, 3):
            assert ran(function, size) == "compiled"
    assert backend.graphs == 1


@pytest.mark.parametrize("stance", [*STANCES[4:], "default", "force_eager"])
def test_functions_with_breaks(stance: str) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        flambeau.compiler.graph_break()
        return sorted([y + 1, y * 2], key=lambda item: item.sum().item())[0]

    backend = Counting()
    function = flambeau.compile(program, backend=backend)
    with set_stance(stance):
        for size in (3, 4, 7, 5):
            x = torch.randn(size)
            torch.testing.assert_close(function(x), program(x))
    assert (backend.graphs == 0) == (stance == "force_eager")
    with set_stance("eager_on_recompile"), set_stance(force_backend="eager"):
        torch.testing.assert_close(function(x), program(x))


def test_eager_then_compile_stays_static_where_sizes_do_not_differ() -> None:
    function, backend = pair()
    with set_stance("eager_then_compile"):
        for size in (3, 3, 3, 5):
            ran(function, size)
    assert backend.graphs == 2


def test_a_forced_backend_has_entries_of_its_own() -> None:
    function, backend = pair()
    forced = Counting()
    with set_stance(force_backend=forced):
        assert ran(function) == ran(function) == "compiled"
    assert (backend.graphs, forced.graphs) == (0, 1)
    ran(function)
    with set_stance(force_backend=forced):
        ran(function)
    with set_stance(force_backend="eager"):
        assert ran(function) == "compiled"
    assert (backend.graphs, forced.graphs) == (1, 1)
    flambeau.reset()
    with set_stance(force_backend=forced):
        ran(function)
    assert forced.graphs == 2


def test_modules_and_methods() -> None:
    model = torch.nn.Linear(3, 3)
    backend = Counting()
    compiled = flambeau.compile(model, backend=backend)
    x = torch.randn(2, 3)
    with set_stance("force_eager"):
        torch.testing.assert_close(compiled(x), model(x))
    assert backend.graphs == 0
    torch.testing.assert_close(compiled(x), model(x))
    assert backend.graphs == 1


def test_torchs_own_stance_keeps_from_compiling() -> None:
    function, backend = pair()
    torch.compiler.set_stance("force_eager")
    assert ran(function) == "eager"
    torch.compiler.set_stance("default")
    assert ran(function) == "compiled"
    assert backend.graphs == 1


def test_a_stance_set_by_captured_code_is_a_break() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x.cos()
        with set_stance("force_eager"):
            return y * 2

    x = torch.randn(4)
    torch.testing.assert_close(flambeau.compile(program, backend="eager")(x), program(x))
    with pytest.raises(flambeau.CaptureError, match="compiler-function"):
        flambeau.compile(program, fullgraph=True)(x)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"stance": "lazy"}, "unknown stance 'lazy'; known: default, force_eager"),
        ({"stance": "force_eager", "force_backend": "eager"}, "'default' only"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(RuntimeError, match=words):
        set_stance(**arguments)
    function, _ = pair()
    assert ran(function) == "compiled", "no stance was left behind"


def test_many_threads_in_stances_of_their_own() -> None:
    function, _ = pair()
    ran(function)
    failures: list[str] = []

    def work(stance: str, expected: str) -> None:
        for _ in range(100):
            with set_stance(stance):
                if ran(function) != expected:
                    failures.append(stance)

    expected = {"force_eager": "eager", "eager_on_recompile": "compiled", "default": "compiled"}
    threads = [
        threading.Thread(target=work, args=item) for item in expected.items() for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert ran(function) == in_thread(lambda: ran(function)) == "compiled"


def test_the_last_call_decides_whatever_blocks_do_meanwhile() -> None:
    function, _ = pair()
    ran(function)
    late = set_stance("eager_on_recompile")
    set_stance("force_eager")
    with late:
        assert ran(function) == "compiled"
    assert ran(function) == "eager"
    for _ in range(100):
        set_stance("default")
    assert ran(function) == "compiled"
