"""Compiled graphs on disk: what is read gives eager's results, and whatever may change the compiled
form makes another key.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import flambeau
from flambeau import program_compiler, stored_graphs, stored_training, surroundings
from flambeau.report import report_of
from flambeau_capture.stored.reasons import Stale
from flambeau_prims import autocast
from flambeau_runtime.environment_errors import CompilerNotFound
from flambeau_runtime.graph_launch import stream_uses


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A separate cache, with graphs in it."""
    monkeypatch.setenv("FLAMBEAU_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("FLAMBEAU_GRAPH_CACHE", "1")
    monkeypatch.setenv("FLAMBEAU_CHECK", "0")  # which compiles every graph
    monkeypatch.setattr("flambeau.api.store_of", lambda *_: None)  # graphs without entries
    yield tmp_path / "cache"


def stored(function: Any, *args: Any, **options: Any) -> str:
    """Compile and call a function again, beside eager: what became of its one graph."""
    compiled = flambeau.compile(function, **options)
    expected = function(*args)
    torch.testing.assert_close(compiled(*args), expected)
    (graph,) = report_of(compiled).graphs
    assert graph.fallback is None
    return graph.stored


def blend(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, int]:
    z = torch.sin(x) * y + 1.5
    return z.t(), z.sum(0), 3


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(4, 6), torch.randn(4, 6)


def test_a_graph_is_written_once_and_read_then() -> None:
    assert stored(blend, *inputs()) == "written"
    assert stored(blend, *inputs()) == "read"


def test_results_are_views_and_inputs_as_in_eager() -> None:
    def views(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.cos()
        return x, y.t(), y, x[1:]

    for expected in ("written", "read"):
        compiled = flambeau.compile(views, fullgraph=True)
        x = torch.randn(3, 5)
        same, transposed, y, rest = compiled(x)
        assert same is x and transposed._base is y and rest._base is x
        torch.testing.assert_close(transposed, x.cos().t())
        assert [graph.stored for graph in report_of(compiled).graphs] == [expected]


def test_writes_to_inputs() -> None:
    def writes(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(y)
        return x * 2

    for expected in ("written", "read"):
        x, y = inputs()
        eager = x.clone()
        result = writes(eager, y)
        compiled = flambeau.compile(writes)
        version = x._version
        torch.testing.assert_close(compiled(x, y), result)
        torch.testing.assert_close(x, eager)
        assert x._version == version + 1
        assert [graph.stored for graph in report_of(compiled).graphs] == [expected]


def test_literals_in_the_graph_are_stored() -> None:
    def literal(x: torch.Tensor) -> torch.Tensor:
        return x * torch.tensor([1.0, float("nan"), -0.0]) + torch.tensor(2)

    x = torch.randn(3)
    for expected in ("written", "read"):
        compiled = flambeau.compile(literal)
        torch.testing.assert_close(compiled(x), literal(x), equal_nan=True)
        assert [graph.stored for graph in report_of(compiled).graphs] == [expected]


def _transposed(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.t().contiguous().t(), y


@pytest.mark.parametrize(
    "change",
    [
        lambda x, y: (x.double(), y.double()),
        lambda x, y: (x[:, :5], y[:, :5]),
        _transposed,
        lambda x, y: (x, x),
        lambda x, y: (x, y[:1]),
        lambda x, y: (nn.Parameter(x, requires_grad=False), y),
    ],
    ids=["dtype", "sizes", "strides", "one tensor twice", "broadcast", "parameter"],
)
def test_other_inputs_are_other_graphs(change: Callable[..., tuple[Any, ...]]) -> None:
    assert stored(blend, *inputs()) == "written"
    for expected in ("written", "read"):
        assert stored(blend, *change(*inputs())) == expected


def test_inputs_that_share_memory_are_other_graphs() -> None:
    memory = torch.randn(9)
    apart, sharing = (torch.randn(6), torch.randn(6)), (memory[:6], memory[3:])

    def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y

    assert [stored(add, *pair) for pair in (apart, sharing, apart)] == [
        "written",
        "written",
        "read",
    ]


@contextlib.contextmanager
def _deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@contextlib.contextmanager
def _default_dtype() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextlib.contextmanager
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def _precision() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize(
    "state",
    [
        torch.no_grad, torch.inference_mode, _deterministic, _default_dtype, _threads, _precision,
        lambda: torch.autocast("cpu", dtype=torch.bfloat16),
        lambda: torch.backends.mkldnn.flags(enabled=False),
    ],
    ids=[
        "no_grad", "inference", "deterministic", "default dtype", "threads", "precision",
        "autocast", "mkldnn",
    ],
)  # fmt: skip
def test_other_states_of_torch_are_other_graphs(
    state: Callable[[], contextlib.AbstractContextManager[Any]],
) -> None:
    def product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return functional.relu(x @ y.t()) + torch.ones(())

    pair = inputs()
    torch.set_float32_matmul_precision("highest")
    assert stored(product, *pair) == "written"
    for expected in ("written", "read"):
        with state():
            assert stored(product, *pair) == expected
    assert stored(product, *pair) == "read"


def test_other_constants_are_other_graphs() -> None:
    def scaled(scale: Any) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda x: x.cos() * scale

    x = torch.randn(5)
    scales = (2, 2.0, True, 0.0, -0.0, 2.0000000000000004)
    assert [stored(scaled(scale), x) for scale in scales] == ["written"] * len(scales)
    assert [stored(scaled(scale), x) for scale in scales] == ["read"] * len(scales)


def test_other_options_are_other_graphs() -> None:
    pair = inputs()
    assert stored(blend, *pair) == "written"
    assert stored(blend, *pair, options={"decompose": False}) == "written"
    assert stored(blend, *pair, options={"isa": "baseline"}) == "written"
    assert stored(blend, *pair) == "read"


def test_a_patched_function_of_torch_is_not_taken_for_torchs_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def normalised(x: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(x, (6,))

    x = torch.randn(4, 6)
    assert stored(normalised, x) == "written"
    own = functional.layer_norm

    def layer_norm(*args: Any, **kwargs: Any) -> torch.Tensor:
        return own(*args, **kwargs) * 2

    layer_norm.__module__, layer_norm.__qualname__ = own.__module__, own.__qualname__
    monkeypatch.setattr(functional, "layer_norm", layer_norm)
    assert "[foreign-call]" in stored(normalised, x)
    monkeypatch.setattr(functional, "layer_norm", own)
    assert stored(normalised, x) == "read"


def test_training_compiles_no_program_again(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled_graphs = []
    compile_graph = program_compiler.compile_graph

    def noting(*args: Any, **kwargs: Any) -> Any:
        compiled_graphs.append(args[0])
        return compile_graph(*args, **kwargs)

    monkeypatch.setattr(program_compiler, "compile_graph", noting)

    def train(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = functional.gelu(x @ weight)
        return y.sum(), (y * weight.sum()).tanh()

    counts = []
    for both in (True, True, False, False, True):
        x, weight = torch.randn(4, 6), torch.randn(6, 6)
        gradients = []
        for function in (train, flambeau.compile(train)):
            leaves = [x.clone().requires_grad_(), weight.clone().requires_grad_()]
            loss, other = function(*leaves)
            (loss + other.mean() if both else loss).backward()
            gradients.append([leaf.grad for leaf in leaves])
        torch.testing.assert_close(gradients[1], gradients[0])
        counts.append(len(compiled_graphs))
    # Forward, the backward of the loss alone, which was expected, and the general one.
    assert counts == [3, 3, 3, 3, 3]


@torch.library.custom_op("stored_graphs::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


_RULES = {"twice": torch.empty_like}


@twice.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return _RULES["twice"](x)  # of a dict that the program may change


@pytest.fixture
def read_ahead(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Programs are handled as on a GPU; the keys of those that were loaded ahead."""
    loaded: list[str] = []
    read, load = stored_training.read_training, stored_training.StoredBackwards._load

    def read_training(*args: Any, on_gpu: bool) -> Any:
        return read(*args, on_gpu=True)

    def noted(backwards: Any, key: str) -> Any:
        found = load(backwards, key)
        if threading.current_thread() is not threading.main_thread() and found is not None:
            loaded.append(key)
        return found

    monkeypatch.setattr(stored_training, "read_training", read_training)
    monkeypatch.setattr(stored_training.StoredBackwards, "_load", noted)
    monkeypatch.setattr(stored_graphs, "uses_gpu", lambda program: True)
    monkeypatch.setattr(stored_graphs, "_launch_lines", lambda program, graph: None)
    monkeypatch.setattr(stored_graphs, "_decoded_lines", lambda program, data: None)

    def load_program(program: Any, lines: Any, title: str, context: Any) -> Any:
        return stored_graphs.load(program, context.options.runtime, None, title), []

    monkeypatch.setattr(stored_graphs, "load_program", load_program)
    return loaded


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, 5))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x @ self.weight
        return y.sin(), y.cos()


def _step(module: nn.Module, x: torch.Tensor, used: tuple[int, ...]) -> tuple[Any, torch.Tensor]:
    """The graph of a first step from a loss of some results, and the gradient."""
    compiled = flambeau.compile(module)
    results = compiled(x)
    (graph,) = report_of(compiled).graphs
    sum(results[at].sum() for at in used).backward()
    gradient, module.weight.grad = module.weight.grad, None
    return graph, gradient


@pytest.mark.parametrize("damaged", [(), (stored_graphs.PROGRAM,), (stored_graphs.FIRST_BACKWARD,)])
def test_backwards_that_are_read_ahead(
    damaged: tuple[str, ...], cache: Path, read_ahead: list[str]
) -> None:
    """What cannot be read ahead is made when it is needed."""
    module, x = Layer(), torch.randn(3, 5)
    loss = sum(y.sum() for y in module(x))
    (want,) = torch.autograd.grad(loss, module.weight)
    _step(module, x, (0, 1))
    _step(module, x, (0,))  # notes its backward as the first
    for kind in damaged:
        for file in (cache / "entries" / kind).iterdir():
            file.write_text("{}")
    graph, gradient = _step(module, x, (0, 1))
    assert graph.stored == "read" and len(graph.programs) == 2
    torch.testing.assert_close(gradient, want)


def test_the_backward_that_is_read_ahead_is_the_one_that_was_needed_first(
    read_ahead: list[str],
) -> None:
    module, x = Layer(), torch.randn(3, 5)
    wants = {
        used: torch.autograd.grad(sum(module(x)[at].sum() for at in used), module.weight)[0]
        for used in ((0,), (1,), (0, 1))
    }
    _step(module, x, (1,))
    for used in ((1,), (1,), (0, 1), (0, 1), (0,), (0,), (0,)):
        graph, gradient = _step(module, x, used)
        assert graph.stored == "read" and len(graph.programs) == 2
        torch.testing.assert_close(gradient, wants[used])
    distinct = list(dict.fromkeys(read_ahead))
    assert [distinct.index(key) for key in read_ahead] == [0, 0, 0, 1, 1, 2, 2]


def test_a_call_waits_for_what_is_read_ahead() -> None:
    goes_on, loaded = threading.Event(), object()

    def load(key: str) -> Any:
        goes_on.wait()
        return loaded

    ahead = stored_training._ReadAhead(lambda: "a key", load)
    with ThreadPoolExecutor(1) as threads:
        taken = threads.submit(ahead.take, "a key")
        time.sleep(0.05)
        assert not taken.done()
        goes_on.set()
        assert taken.result() is loaded
    assert ahead.take("another key") is None


@pytest.mark.parametrize("fails", ["first", "load"])
def test_what_fails_ahead_is_left_to_the_call(fails: str) -> None:
    def fail(*_: Any) -> Any:
        raise OSError("no space")

    first = fail if fails == "first" else lambda: "a key"
    ahead = stored_training._ReadAhead(first, fail)
    assert ahead.take("a key") is None


def test_what_is_not_stored_says_why() -> None:
    x = torch.randn(4, 6)
    weight = torch.randn(6, requires_grad=True)
    assert "[foreign-call]" in stored(lambda x: twice(x) * weight, x)
    assert "[symbolic]" in stored(lambda x: x.sin(), x, dynamic=True)
    assert "[frozen]" in stored(lambda x: x.sin(), x, options={"freezing": True})
    assert "[foreign-call]" in stored(lambda x: twice(x) + 1, x)
    assert not stored(lambda x: x.sin(), x, options={"graph_cache": False})
    assert "in the cache: " in str(flambeau.explain(lambda x: twice(x) * weight)(x))


def test_a_damaged_file_is_a_miss(cache: Path) -> None:
    pair = inputs()
    assert stored(blend, *pair) == "written"
    (entry,) = (cache / "entries" / stored_graphs.KIND).iterdir()
    object_ = cache / "objects" / f"{json.loads(entry.read_text())['sha256']}.json"
    content = object_.read_bytes()
    for damaged in (b"", content[:-1], content.replace(b"Result", b"Tluser"), b"[]", b"\xff\xfe"):
        object_.write_bytes(damaged)
        assert stored(blend, *pair) == ("read" if damaged == content else "written")
    object_.chmod(0o666)
    assert stored(blend, *pair) == "written"
    # An object of the right hash that is no compiled graph.
    for data in ({}, {"call": 3}, {"call": {}, "program": {}}, []):
        key = entry.stem
        text = json.dumps([stored_graphs.binding(stored_graphs.KIND, key), data]).encode()
        stored_graphs.Cache(cache).store(stored_graphs.KIND, key, text, ".json")
        assert stored(blend, *pair) == "written"
    assert stored(blend, *pair) == "read"


def test_kernels_that_cannot_be_built_are_the_backends_affair(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pair = inputs()
    assert stored(blend, *pair) == "written"

    def no_compiler(*args: Any) -> Any:
        raise CompilerNotFound("there is no compiler")

    monkeypatch.setattr(stored_graphs, "load", no_compiler)
    monkeypatch.setattr(program_compiler, "begin_load", no_compiler)
    compiled = flambeau.compile(blend)
    with pytest.warns(RuntimeWarning, match="runs 'blend' eagerly: there is no compiler"):
        torch.testing.assert_close(compiled(*pair), blend(*pair))
    (graph,) = report_of(compiled).graphs
    assert graph.fallback is not None and graph.fallback.reason == "no-compiler"
    assert "it runs eagerly (no-compiler) [eager]" in graph.stored


def test_errors_are_those_of_eager() -> None:
    def indexed(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return x[index] + 1

    for expected in ("written", "read"):
        compiled = flambeau.compile(indexed)
        x = torch.randn(3)
        torch.testing.assert_close(compiled(x, torch.tensor([0, 2])), x[[0, 2]] + 1)
        with pytest.raises(IndexError, match=r"out of (range|bounds)"):
            compiled(x, torch.tensor([0, 7]))
        assert [graph.stored for graph in report_of(compiled).graphs] == [expected]


@pytest.mark.parametrize("trains", [False, True])
def test_another_process_imports_no_compiler(trains: bool) -> None:
    program = """
import sys, torch, flambeau
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.LayerNorm(8)).eval()
x = torch.randn(3, 8)
compiled = flambeau.compile(model, fullgraph=True)
with torch.set_grad_enabled(trains):
    y = compiled(x)
    assert torch.allclose(y, model(x), atol=1e-5)
if trains:
    y.sum().backward()
from flambeau.report import report_of
heavy = {
    "sympy", "triton", "flambeau_inductor.compile", "flambeau_autograd.pipeline",
    "flambeau_autograd.operators", "flambeau_prims.operator_facts",
}
print([graph.stored for graph in report_of(compiled).graphs], sorted(heavy & set(sys.modules)))
"""
    printed = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", f"trains = {trains}\n{program}"],
            capture_output=True,
            text=True,
            env=dict(os.environ),
        )
        assert done.returncode == 0, done.stderr
        printed.append(done.stdout.strip().splitlines()[-1])
    assert printed[0].startswith("['written']")
    assert "flambeau_inductor.compile" in printed[0]
    assert printed[1] == "['read'] []"


@pytest.mark.parametrize("layers", [1, 4])
def test_a_captured_graph_that_is_read_back_as_another_is_not_stored(
    layers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = importlib.import_module("flambeau.graph_messages")
    encode = messages.encode_message
    altered = []

    def encode_another(*arguments: Any) -> Any:
        message = encode(*arguments)
        for node in message["graph"]["graph"][0]:
            if altered and node.get("target") == "torch.sin":
                node["target"] = altered[0]
        return message

    monkeypatch.setattr(messages, "encode_message", encode_another)

    def program(x: torch.Tensor) -> torch.Tensor:
        for _ in range(layers):
            x = torch.sin(x) * 2
        return x

    stored = []
    for target in ("", "torch.cos"):
        altered[:] = [target] if target else []
        compiled = flambeau.compile(program, options={"cache_dir": tmp_path / f"cache{target}"})
        compiled(torch.randn(3, requires_grad=True)).sum().backward()
        stored.append(report_of(compiled).graphs[0].stored)
    assert stored[0] == "written"
    assert "the graph, read again, is another one" in stored[1]


@pytest.mark.parametrize("register", [autocast.install, stream_uses._listen])
def test_kernels_that_are_registered_for_gpus_leave_the_keys(register: Callable[[], Any]) -> None:
    before = surroundings.state_of_torch()
    register()  # which the first program on a GPU, or its first recording, does
    assert surroundings.state_of_torch() == before


def test_tensors_elsewhere_have_no_key() -> None:
    compiled = flambeau.compile(lambda x: x + 1)
    compiled(torch.empty(3, device="meta"))
    (graph,) = report_of(compiled).graphs
    assert "[device]" in graph.stored


def test_generators_are_found_by_their_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = importlib.import_module("flambeau_capture.stored.entries")
    gpus = tuple(torch.Generator() for _ in range(2))
    monkeypatch.setattr(torch.cuda, "default_generators", gpus)
    own = torch.default_generator
    assert entries._devices_of((own,)) == ["cpu"] and entries._devices_of(()) == []
    for devices, found in {
        (): (), ("cpu",): (own,), ("cpu", "cuda:1"): (own, gpus[1]), ("cpu", "cuda"): (own, *gpus),
    }.items():  # fmt: skip
        assert entries._generators_of(list(devices)) == found
    with pytest.raises(Stale, match="no GPU cuda:2"):
        entries._generators_of(["cuda:2"])
