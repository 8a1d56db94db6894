"""Files of exported graphs: what they keep, what they refuse, and that loading runs nothing that a
file brings.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import zipfile
from collections import OrderedDict, defaultdict, namedtuple
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.functional as F
from exporting import same
from torch import nn

from flambeau_capture import Dim, ExportFileError, export, load
from flambeau_capture.exported import targets
from flambeau_capture.graphs.recurrent_networks import in_autocast

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

BATCH = Dim("batch", max=32)


@dataclasses.dataclass
class Output:
    logits: torch.Tensor
    extra: Any = None


Point = namedtuple("Point", ["x", "y"])


class Plain:
    """No dataclass: a file may not make one unless the caller says so."""

    def __init__(self, value: torch.Tensor) -> None:
        self.value = value


def saved_and_loaded(exported: Any, path: Path, **options: Any) -> Any:
    exported.save(path)
    loaded = load(path, **options)
    assert str(loaded) == str(exported)
    assert loaded.guards == exported.guards
    return loaded


# ---------------------------------------------------------------- what files keep


def constants(x: torch.Tensor) -> Any:
    y = x[..., None, ::2].to(torch.float64, memory_format=torch.contiguous_format)
    z = torch.full((2,), float("inf"), device=torch.device("cpu")) * float("-inf")
    return (
        y,
        z,
        torch.zeros(1, dtype=torch.complex64) + 1j,
        x.clamp(min=None, max=-0.0),
        F.pad(x, (1, 0, 2, 3)),
    )


def structures(x: torch.Tensor) -> Any:
    shared = [x]
    numbers: dict[Any, Any] = defaultdict(list)
    numbers["a"] = x + 1
    return {
        "point": Point(x, (shared, shared)),
        "output": Output(x.sum(), OrderedDict([(1, x.shape), (None, torch.float16)])),
        "rest": [slice(1, x.shape[0]), {2, 3}, frozenset({"q"}), b"\x00", 1 - 2j, ..., range(3)],
        "numbers": numbers,
        "top": torch.max(x, 0),
    }


def state_of_torch(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        y = x * 2
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return y @ x.t()


PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[[int], Any]]] = {
    "constants": (constants, lambda n: torch.randn(n, 3, 4)),
    "structures": (structures, lambda n: torch.randn(n, 3)),
    "bfloat16": (lambda x: (x * 3, x.float().sum(-1)), lambda n: torch.randn(n, 5).bfloat16()),
    "complex": (
        lambda x: (x * 1j, torch.view_as_real(x), x.real, x.conj().resolve_conj()),
        lambda n: torch.randn(n, 5, dtype=torch.complex64),
    ),
    "bool": (lambda x: (~x, x & x.roll(1), x.sum()), lambda n: torch.rand(n, 5) > 0.5),
    "int": (
        lambda x: (x // 3, x % 3, x << 1, x.to(torch.uint8), F.one_hot(x % 4, 4)),
        lambda n: torch.randint(0, 99, (n, 5)),
    ),
    "setitem": (
        lambda x: F.relu(x.clone().index_put_((torch.tensor([0]),), torch.tensor(9.0))),
        lambda n: torch.randn(n, 3),
    ),
    "state of torch": (state_of_torch, lambda n: torch.randn(n, 4)),
    "sizes": (
        lambda x: x.reshape(-1).repeat(2)[: x.shape[0] * 2 + 1] / x.shape[0] ** 0.5,
        lambda n: torch.randn(n, 4),
    ),
    "operators": (
        lambda x: torch.ops.aten.add.Tensor(torch.einsum("ij,kj->ik", x, x), 1, alpha=2),
        lambda n: torch.randn(n, 4),
    ),
    "pooling": (lambda x: F.max_pool1d(F.gelu(x[None]), 2), lambda n: torch.randn(n, 6)),
    "attention": (
        lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None], is_causal=True),
        lambda n: torch.randn(n, 8),
    ),
    "linear algebra": (
        lambda x: (
            torch.linalg.vector_norm(x, dim=-1),
            torch.linalg.norm(x),
            torch.special.expit(x),
        ),
        lambda n: torch.randn(n, 6),
    ),
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str, dynamic: bool, tmp_path: Path) -> None:
    program, make = PROGRAMS[name]
    example = make(4)
    exported = export(program, (example,), dynamic_shapes=({0: BATCH},) if dynamic else None)
    loaded = saved_and_loaded(exported, tmp_path / "graph")
    for rows in (4, 7, 2) if dynamic else (4,):
        x = make(rows)
        same(loaded(x), program(x))
    result = loaded(make(4))
    if name == "structures":
        assert result["point"].y[0] is result["point"].y[1]
        assert result["numbers"].default_factory is list


class Tied(nn.Module):
    """Tied weights, views of one storage, a frozen parameter, a buffer of each odd sort."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight
        both = torch.randn(2, 4)
        self.register_buffer("both", both)
        self.register_buffer("second", both[1])
        self.register_buffer("columns", torch.randn(4, 6).t()[::2])
        self.register_buffer("empty", torch.empty(0, 3))
        self.register_buffer("halves", torch.randn(3).bfloat16(), persistent=False)
        self.frozen = nn.Parameter(torch.randn(4), requires_grad=False)
        self.inner = nn.ModuleDict({"a-b": nn.Identity(), "c": nn.BatchNorm1d(7)})

    def forward(self, tokens: torch.Tensor) -> Any:
        hidden = self.embed(tokens).mean(1) + self.second + self.frozen
        self.both.mul_(2)
        logits = self.inner["c"](self.head(hidden))
        rest = (
            self.columns @ hidden.t(),
            self.empty.sum(),
            self.halves * 2,
            self.both + 0,
            self.second,
        )
        return logits, rest


def test_state(tmp_path: Path) -> None:
    model = Tied()
    tokens = torch.randint(0, 7, (3, 5))
    exported = export(model, (tokens,), dynamic_shapes=({0: BATCH},))
    loaded = saved_and_loaded(exported, tmp_path / "graph")
    state = loaded.state
    assert "embed.weight" in state
    assert "head.weight" not in state
    (tied,) = [item for item in loaded.inputs if item.name == "embed.weight"]
    assert tied.also == ("head.weight",)
    assert isinstance(state["frozen"], nn.Parameter)
    assert not state["frozen"].requires_grad
    assert state["embed.weight"].requires_grad
    assert state["both"].untyped_storage()._cdata == state["second"].untyped_storage()._cdata
    for name in state:
        same(state[name], exported.state[name])
        assert state[name].untyped_storage()._cdata != exported.state[name].untyped_storage()._cdata
    for _ in range(2):
        tokens = torch.randint(0, 7, (6, 5))
        same(loaded(tokens), model(tokens))
    same(loaded.state["both"], model.both)
    same(loaded.state["inner.c.running_mean"], model.inner["c"].running_mean)


def test_gradients_after_loading(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    loaded = saved_and_loaded(export(model, (torch.randn(4, 3),)), tmp_path / "graph")
    x = torch.randn(4, 3)
    loaded(x).sum().backward()
    model(x).sum().backward()
    same(loaded.state["weight"].grad, model.weight.grad)


def test_random_numbers(tmp_path: Path) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x, 0.5) + torch.rand(3)

    loaded = saved_and_loaded(export(program, (torch.randn(3),)), tmp_path / "graph")
    x = torch.randn(3)
    torch.manual_seed(3)
    found = loaded(x)
    torch.manual_seed(3)
    same(found, program(x))


def test_saved_again(tmp_path: Path) -> None:
    """A loaded graph is saved to an equal file, and checks inputs as the first did."""
    exported = export(constants, (torch.randn(4, 3, 4),), dynamic_shapes=({0: BATCH},))
    loaded = saved_and_loaded(exported, tmp_path / "first")
    saved_and_loaded(loaded, tmp_path / "second")
    graphs = [
        json.loads(zipfile.ZipFile(tmp_path / name).read("graph.json"))
        for name in ("first", "second")
    ]
    assert graphs[0] == graphs[1]
    with pytest.raises(ValueError, match="batch <= 32 does not hold"):
        loaded(torch.randn(33, 3, 4))


CHILD = """
import sys
import torch
import flambeau_capture
loaded = flambeau_capture.load({path!r})
inputs, expected = torch.load({data!r})
torch.testing.assert_close(loaded(*inputs), expected, rtol=0, atol=0)
unwanted = ("torch._dynamo", "torch._inductor", "torch.export", "model_")
new = [name for name in sys.modules if name not in {before!r}]
assert not any(name.startswith(unwanted) for name in new)
print("equal")
"""


def test_without_the_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model of a module that exists in this process only."""
    source = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 2)

    def forward(self, x):
        return torch.tanh(self.linear(x))
"""
    (tmp_path / "model_of_this_test.py").write_text(source)
    with monkeypatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        from model_of_this_test import Model  # type: ignore[import-not-found]
    model = Model()
    export(model, (torch.randn(4, 3),), dynamic_shapes=({0: BATCH},)).save(tmp_path / "graph")
    x = torch.randn(9, 3)
    torch.save(((x,), model(x).detach()), tmp_path / "data")
    before = subprocess.run(
        [sys.executable, "-c", "import torch, sys; print(list(sys.modules))"],
        capture_output=True,
        text=True,
        check=True,
    )
    child = CHILD.format(
        path=str(tmp_path / "graph"), data=str(tmp_path / "data"), before=before.stdout
    )
    done = subprocess.run(
        [sys.executable, "-c", child], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "equal", done.stderr


# ---------------------------------------------------------------- what files refuse


def test_classes(tmp_path: Path) -> None:
    exported = export(lambda x: Plain(x + 1), (torch.randn(3),))
    exported.save(tmp_path / "graph")
    with pytest.raises(
        ExportFileError,
        match=r"Plain, which is no dataclass or container: load\(path, classes=\[Plain\]\)",
    ):
        load(tmp_path / "graph")
    x = torch.randn(3)
    same(load(tmp_path / "graph", classes=[Plain])(x), Plain(x + 1))
    _edit(tmp_path / "graph", lambda text: text.replace(f"{__name__}.Plain", "not_there.Plain"))
    with pytest.raises(ExportFileError, match="import not_there first"):
        load(tmp_path / "graph")
    assert "not_there" not in sys.modules


def test_operators_of_the_program(tmp_path: Path) -> None:
    with torch.library._scoped_library("flambeau_test_export", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CompositeImplicitAutograd")
        program = export(lambda x: torch.ops.flambeau_test_export.twice(x), (torch.randn(3),))
        loaded = saved_and_loaded(program, tmp_path / "graph")
        same(loaded(torch.ones(3)), torch.full((3,), 2.0))
    with pytest.raises(ExportFileError, match=r"flambeau_test_export\.twice.* is not registered"):
        load(tmp_path / "graph")


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(factor)
        return x * factor

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        (factor,) = ctx.saved_tensors
        return gradient * factor * 2, None


class Ruled(torch.autograd.Function):
    @staticmethod
    def forward(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x @ w

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_forward(*inputs)

    @staticmethod
    def jvp(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x @ ctx.saved_tensors[1] + ctx.saved_tensors[0] @ w) * 3

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: torch.Tensor, w: torch.Tensor) -> Any:
        return x @ w * 5, in_dims[0]


HOLDERS: dict[str, Callable[..., Any]] = {
    "vmap": lambda x, w: torch.vmap(lambda row: torch.sin(row @ w))(x),
    "grad": lambda x, w: torch.func.grad(lambda x: (torch.cos(x) @ w).sum())(x),
    "jacrev": lambda x, w: torch.func.jacrev(lambda w: torch.tanh(x @ w))(w),
    "jvp": lambda x, w: torch.func.jvp(torch.sin, (x,), (x * 2,)),
    "cond": lambda x, w: torch.cond(x.sum() > 0, lambda x: x @ w, lambda x: x @ w - 1, (x,)),
    "function": lambda x, w: Doubled.apply(x, w.sum()) + 1,
    "mapped_function": lambda x, w: torch.vmap(lambda row: Ruled.apply(row, w))(x),
    "tangent_of_function": lambda x, w: torch.func.jvp(Ruled.apply, (x, w), (x, w * 2)),
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", HOLDERS)
def test_nodes_that_hold_graphs(name: str, dynamic: bool, tmp_path: Path) -> None:
    program = HOLDERS[name]
    shapes = ({0: BATCH}, None) if dynamic else None
    x, w = torch.randn(4, 3, requires_grad=name == "function"), torch.randn(3)
    loaded = saved_and_loaded(export(program, (x, w), dynamic_shapes=shapes), tmp_path / "graph")
    for rows in (4, 6) if dynamic else (4,):
        for sign in (1, -1):
            x = (torch.rand(rows, 3) * sign).requires_grad_(name == "function")
            found, expected = loaded(x, w), program(x, w)
            torch.testing.assert_close(found, expected)
            if name == "function":
                found.sum().backward()
                ours, x.grad = x.grad, None
                expected.sum().backward()
                same(ours, x.grad)


def test_what_cannot_be_saved(tmp_path: Path) -> None:
    exported = export(constants, (torch.randn(4, 3, 4),))
    node = next(node for node in exported.graph_module.graph.nodes if node.op == "call_function")
    node.args = (*node.args, torch.Generator())
    with pytest.raises(
        TypeError, match=r"test_export_files\.py:\d+: .* cannot be saved: .*Generator"
    ):
        exported.save(tmp_path / "graph")
    assert not (tmp_path / "graph").exists()


BLOCKED = """
import sys
for name in (
    "flambeau", "flambeau_autograd", "flambeau_inductor", "flambeau_runtime",
    "transformers", "rich", "hypothesis", "onnx",
):
    sys.modules[name] = None
import torch
from flambeau_capture import Dim, export, load
linear = torch.nn.Linear(3, 2)
exported = export(linear, (torch.randn(4, 3),), dynamic_shapes=({{0: Dim("batch")}},))
exported.save({path!r})
exported.to_svg({path!r} + ".svg")
x = torch.randn(7, 3)
assert torch.equal(load({path!r})(x), linear(x))
print("done")
"""


def test_with_torch_and_prims_alone(tmp_path: Path) -> None:
    code = BLOCKED.format(path=str(tmp_path / "graph"))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "done", done.stderr


def _edit(path: Path, change: Callable[[str], str], member: str = "graph.json") -> None:
    """Rewrite one member of a file."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    members[member] = change(members[member].decode()).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A small exported graph in a file."""
    path = tmp_path / "graph"
    model = nn.Sequential(nn.Linear(3, 2), nn.Tanh())
    export(model, (torch.randn(4, 3),), dynamic_shapes=({0: BATCH},)).save(path)
    return path


DAMAGES: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "an unknown function": (
        lambda d: d["graph"]["graph"][0][-1].update(target="os.system"),
        "'os.system' is no function",
    ),
    "a function that reads files": (
        lambda d: d["graph"]["graph"][0][-1].update(target="torch.load"),
        "'torch.load' is no function",
    ),
    "an operator that reads files": (
        lambda d: d["graph"]["graph"][0][-1].update(target="torch.ops.aten.from_file"),
        "from_file is not registered",
    ),
    "a private method": (
        lambda d: d["graph"]["graph"][0][-1].update(op="call_method", target="__reduce_ex__"),
        "no tensor method",
    ),
    "a private method that is no operator": (
        lambda d: d["graph"]["graph"][0][-1].update(op="call_method", target="_typed_storage"),
        "no tensor method",
    ),
    "a class": (
        lambda d: d["graph"]["graph"][0][-1].update(op="call_method", target="__class__"),
        "no tensor method",
    ),
    "an attribute": (
        lambda d: d["graph"]["graph"][0][-1].update(
            target="builtins.getattr",
            args=[{"node": d["graph"]["graph"][0][0]["name"]}, "__globals__"],
        ),
        "attribute",
    ),
    "code as a name": (
        lambda d: d["graph"]["graph"][0][-1].update(name="x=__import__('os')"),
        "is no name",
    ),
    "code as a keyword": (
        lambda d: d["graph"]["graph"][0][-1].update(kwargs={"dict": [["a,b", 1]]}),
        "'a,b' is no name",
    ),
    "code as a condition": (
        lambda d: d["conditions"].append(["__import__('os').getpid() > batch", ""]),
        "has no meaning in a size|is no",
    ),
    "code as a size": (
        lambda d: d["input_specs"][0]["spec"][2].__setitem__(0, "print(batch)"),
        "is no size",
    ),
    "a node of another graph": (
        lambda d: d["graph"]["graph"][0][-1].update(args=[{"node": "nowhere"}]),
        "read before it is computed",
    ),
    "two nodes of one name": (
        lambda d: d["graph"]["graph"][0].append(d["graph"]["graph"][0][-1]),
        "two nodes are called",
    ),
    "a module's attribute": (
        lambda d: d["graph"]["graph"][0][-1].update(op="get_attr"),
        "a node of kind 'get_attr'",
    ),
    "an unknown dtype": (
        lambda d: d["state"][0].update(dtype={"dtype": "load"}),
        "torch has no dtype 'load'",
    ),
    "a tensor beyond its data": (
        lambda d: d["state"][0].update(shape=[10**6, 10**6]),
        "has no data",
    ),
    "negative sizes": (lambda d: d["state"][0].update(stride=[-1, -1]), "sizes of"),
    "a missing tensor": (lambda d: d["state"].pop(), "is not there"),
    "a missing part": (lambda d: d.pop("graph"), "graph"),
    "a class in a tree": (
        lambda d: d.update(result={"items": ["subprocess.Popen", [], []]}),
        "is not of this kind",
    ),
    "a maker in a tree": (
        lambda d: d.update(result={"made": ["eval", [], []]}),
        "nothing that a file may make",
    ),
    "a class to look up": (
        lambda d: d["classes"].append("subprocess.Popen"),
        "no dataclass or container",
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_and_hostile_graphs(name: str, file: Path) -> None:
    damage, text = DAMAGES[name]

    def change(old: str) -> str:
        data = json.loads(old)
        damage(data)
        return json.dumps(data)

    load(file)
    _edit(file, change)
    with pytest.raises(ExportFileError, match=text):
        load(file)


def test_versions(file: Path) -> None:
    _edit(file, lambda text: text.replace('"version": 1', '"version": 2'), "format.json")
    with pytest.raises(
        ExportFileError, match="version 2 of the format; this flambeau_capture reads version 1"
    ):
        load(file)
    _edit(file, lambda text: text.replace("flambeau exported graph", "other"), "format.json")
    with pytest.raises(ExportFileError, match="its format is 'other'"):
        load(file)


def test_damaged_files(file: Path, tmp_path: Path) -> None:
    whole = file.read_bytes()
    for data in (b"", b"no zip at all", whole[: len(whole) // 2]):
        (tmp_path / "damaged").write_bytes(data)
        with pytest.raises(ExportFileError, match="is no exported graph, or damaged"):
            load(tmp_path / "damaged")
    start = whole.index(bytes(load(file).state["0.weight"].untyped_storage()))
    flipped = bytearray(whole)
    flipped[start] ^= 0xFF
    (tmp_path / "damaged").write_bytes(bytes(flipped))
    with pytest.raises(ExportFileError, match="damaged"):
        load(tmp_path / "damaged")
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "nowhere")


def test_every_name_is_found_again() -> None:
    """Names and functions correspond, and no name of a file leads to a function that makes or loads
    code.
    """
    for name in targets._functions():
        function = targets.function_named(name)
        assert targets.function_named(targets.name_of(function)) is function
        assert not name.rpartition(".")[2].startswith("__")
    for name in (
        "torch.load",
        "torch.save",
        "torch.compile",
        "torch.from_file",
        "builtins.eval",
        "operator.call",
        "operator.attrgetter",
    ):
        with pytest.raises(targets.UnknownTarget):
            targets.function_named(name)


def test_a_file_calls_nothing_but_networks_in_autocast() -> None:
    assert targets.function_named(targets.name_of(in_autocast)) is in_autocast
    with pytest.raises(KeyError):
        in_autocast("load", None, "weights.pt")
