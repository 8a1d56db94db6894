"""Guards are exact: a change of anything read is seen (CHANGES), and a change of nothing read costs
no recompilation (IRRELEVANT).
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import enum
import functools
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from capture_harness import compiled, same
from torch import nn

import flambeau_capture

FACTOR = 2.0
UNREAD = 1
HELPERS = types.ModuleType("helpers")
HELPERS.double = lambda x: x * 2
HELPERS.unread = lambda x: x


class Mode(enum.Enum):
    ADD = "add"
    MULTIPLY = "multiply"


@dataclasses.dataclass
class Config:
    mode: Mode = Mode.ADD
    amount: float = 1.0
    unread: int = 0


class Base:
    bonus = 1.0

    def inherited(self, x):
        return x + self.bonus


class Derived(Base):
    pass


class Twin(Base):
    bonus = 30.0


def make_scaler(by):
    def scaler(x, *, shift=1):
        return x * by + shift

    return scaler


class World(nn.Module):
    """A module that reads one of everything."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(3, 3) for _ in range(2)])
        self.chain = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
        self.norm = nn.BatchNorm1d(3)
        self.weight = nn.Parameter(torch.randn(3))
        self.register_buffer("offset", torch.ones(3))
        self.config = Config()
        self.object = Derived()
        self.numbers = [1, 2, 3]
        self.table = {"a": 1.0, "b": {"c": [2.0]}}
        self.ordered = collections.OrderedDict(first=2.0, second=3.0)
        self.names = {"x", "y"}
        self.queue = collections.deque([1, 2])
        self.flag = True
        self.text = "cos"
        self.optional = None
        self.scaler = make_scaler(3)
        self.method = self.object.inherited
        self.removable = 5.0
        self.partial = functools.partial(make_scaler(2), shift=3)
        self.twins = Derived(), Derived()
        self.logs = {"rows": [], "unread": []}

    @property
    def computed(self):
        return self.config.amount * 2

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        x = self.norm(self.chain(x)) * self.weight + self.offset
        x = x + self.config.amount if self.config.mode is Mode.ADD else x * self.config.amount
        x = self.method(self.object.inherited(x)) + sum(self.numbers) + self.computed
        x = x + self.table["a"] + self.table["b"]["c"][0]
        for value in self.ordered.values():
            x = x * 2 + value
        x = x + len(self.names) + ("x" in self.names) + self.queue[0] + len(self.queue)
        x = -x if self.flag else x
        x = getattr(torch, self.text)(x)
        if self.optional is not None:
            x = x + self.optional
        if hasattr(self, "removable"):
            x = x + self.removable
        x = self.partial(x) + (self.twins[0] is self.twins[1])
        self.logs["rows"].append(x.shape[0])
        return HELPERS.double(self.scaler(x)) * FACTOR


def hook(module, args, out):
    return out * 3


def pre_hook(module, args):
    return (args[0] + 1,)


def set_path(path: str, value: Any) -> Callable[[World], None]:
    """An assignment to an attribute below the module."""
    *steps, last = path.split(".")

    def change(net: World) -> None:
        owner: Any = net
        for step in steps:
            owner = owner[int(step)] if step.isdigit() else getattr(owner, step)
        setattr(owner, last, value() if isinstance(value, types.LambdaType) else value)

    return change


def act(text: str) -> Callable[[World], None]:
    """A statement about `net`."""
    code = compile(text, "<change>", "exec")
    return lambda net: exec(code, globals(), {"net": net})


CHANGES: dict[str, Callable[[World], None]] = {
    # attributes of the module and of objects below it
    "flag": set_path("flag", False),
    "text": set_path("text", "sin"),
    "int of another type": act("net.removable = 5"),
    "optional becomes a tensor": set_path("optional", lambda: torch.ones(3)),
    "optional becomes a number": set_path("optional", 4.0),
    "attribute deleted": act("del net.removable"),
    "dataclass field": set_path("config.amount", 7.0),
    "enum field": set_path("config.mode", Mode.MULTIPLY),
    "dataclass replaced": act("net.config = dataclasses.replace(net.config, amount=9.0)"),
    "property's operand": set_path("config.amount", -1.0),
    "instance attribute over class's": set_path("object.bonus", 8.0),
    "__class__": set_path("object.__class__", Twin),
    "__dict__": act("net.object.__dict__ = {'bonus': 12.0}"),
    "instance method": act("net.object.inherited = lambda x: x - 4"),
    "bound method of another": act("net.method = Twin().inherited"),
    # containers
    "list item": act("net.numbers[1] = 9"),
    "list grown": act("net.numbers.append(4)"),
    "list shrunk": act("net.numbers.pop()"),
    "list cleared": act("net.numbers.clear()"),
    "list replaced": act("net.numbers = [7]"),
    "list becomes a tuple": act("net.numbers = (7, 8)"),
    "dict value": act("net.table['a'] = 3.0"),
    "dict in dict": act("net.table['b'] = {'c': [5.0]}"),
    "list in dict in dict": act("net.table['b']['c'][0] = 6.0"),
    "dict key deleted and put back": act("net.table.pop('a'); net.table['a'] = 2.5"),
    "order of an OrderedDict": act("net.ordered.move_to_end('first')"),
    "value of an OrderedDict": act("net.ordered['first'] = 11.0"),
    "key of an OrderedDict": act("net.ordered['third'] = 1.0"),
    "OrderedDict becomes a dict": act("net.ordered = {'second': 3.0, 'first': 2.0}"),
    "set grown": act("net.names.add('z')"),
    "set of other items": act("net.names.remove('x'); net.names.add('w')"),
    "deque rotated": act("net.queue.rotate(1)"),
    "deque grown": act("net.queue.append(5)"),
    # functions
    "function replaced": act("net.scaler = make_scaler(5)"),
    "closure cell": act("net.scaler.__closure__[0].cell_contents = 6"),
    "code": act(
        "net.scaler.__code__ = (lambda by: lambda x, *, shift=1: x - by * shift)(0).__code__"
    ),
    "keyword default": act("net.scaler.__kwdefaults__['shift'] = 4"),
    "keyword defaults replaced": act("net.scaler.__kwdefaults__ = {'shift': 5}"),
    "function becomes a module": act("net.scaler = nn.Tanh()"),
    "partial's function": act("net.partial = functools.partial(make_scaler(4), shift=3)"),
    "partial's keyword": act("net.partial = functools.partial(make_scaler(2), shift=4)"),
    "partial's keyword in place": act("net.partial.keywords['shift'] = 7"),
    "two objects become one": act("net.twins = (net.twins[0],) * 2"),
    # modules
    "layer replaced": act("net.layers[1] = nn.Linear(3, 3)"),
    "layer of another kind": act("net.layers[0] = nn.Identity()"),
    "layer appended": act("net.layers.append(nn.Linear(3, 3))"),
    "layer deleted": act("del net.layers[0]"),
    "order of layers": act("net.layers[0], net.layers[1] = net.layers[1], net.layers[0]"),
    "Sequential's item": act("net.chain[1] = nn.Tanh()"),
    "Sequential grown": act("net.chain.append(nn.Sigmoid())"),
    "training": act("net.train()"),
    "training of one": act("net.norm.train()"),
    "eps": set_path("norm.eps", 0.5),
    "submodule's forward": act("net.chain.forward = lambda x: x - 1"),
    "parametrized": act("nn.utils.parametrizations.weight_norm(net.layers[0])"),
    # hooks
    "forward hook": act("net.layers[0].register_forward_hook(hook)"),
    "forward pre-hook": act("net.layers[0].register_forward_pre_hook(pre_hook)"),
    "hook of the root": act("net.register_forward_hook(hook)"),
    "hook with keywords": act(
        "net.norm.register_forward_hook(lambda module, args, kwargs, out: out + 2, "
        "with_kwargs=True)"
    ),
    "hook added and removed": act("net.norm.register_forward_hook(hook).remove()"),
    "hook replaced": act("net.norm._forward_hooks[99] = hook"),
    # parameters and buffers
    "parameter": act("net.weight = nn.Parameter(torch.randn(3))"),
    "parameter's data": act("net.weight.data = torch.randn(3)"),
    "parameter in place": act("net.weight.data.add_(1)"),
    "requires_grad": act("net.weight.requires_grad_(False)"),
    "parameter of another dtype": act("net.weight.data = torch.randn(3, dtype=torch.float64)"),
    "parameter of another shape": act("net.weight.data = torch.randn(1)"),
    "parameter of other strides": act("net.layers[0].weight.data = torch.randn(3, 3).t()"),
    "parameter is None": act("net.layers[0].bias = None"),
    "parameter becomes a tensor": act("del net.weight; net.weight = torch.ones(3)"),
    "parameters shared": act("net.layers[0].weight = net.layers[1].weight"),
    "buffer": act("net.offset = torch.zeros(3)"),
    "buffer in place": act("net.offset.mul_(5)"),
    "buffer registered later": act(
        "net.optional = None; del net.optional; net.register_buffer('optional', torch.ones(3))"
    ),
    "load_state_dict": act("net.load_state_dict(World().state_dict())"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changes_are_seen(name: str) -> None:
    torch.manual_seed(0)
    net = World().eval()
    fn = compiled(net)
    x = torch.randn(4, 3)
    for _ in range(3):
        same(fn(x), net(x))
    CHANGES[name](net)
    state = net.state_dict()
    for _ in range(2):
        before = {key: value.clone() for key, value in state.items()}
        found = fn(x)
        for key, value in state.items():
            value.data.copy_(before[key])
        same(found, net(x))


@pytest.mark.parametrize(
    ("owner", "name", "value"),
    [
        (globals(), "FACTOR", 5.0),
        (globals(), "FACTOR", 2),
        (globals(), "make_scaler", None),
        (HELPERS, "double", lambda x: x - 1),
        (globals(), "HELPERS", types.SimpleNamespace(double=lambda x: x * 9)),
        (Base, "bonus", 4.0),
        (Derived, "bonus", 5.0),
        (Base, "inherited", lambda self, x: x * 8),
        (Derived, "inherited", lambda self, x: x * 6),
        (World, "computed", property(lambda self: 3)),
        (World, "computed", 17.0),
        (World, "forward", lambda self, x: x),
        (nn.ReLU, "forward", lambda self, x: x),
        (torch, "cos", torch.sin),
        (nn.functional, "relu", lambda x, inplace=False: -x),
        (nn.functional, "batch_norm", lambda x, *rest: x),
        (nn.Module, "__getattr__", lambda self, name: nn.Module.__dict__["_old"](self, name)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_changes_of_definitions_are_seen(
    owner: Any, name: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = World().eval()
    fn = compiled(net)
    x = torch.randn(4, 3)
    for _ in range(2):
        same(fn(x), net(x))
    if name == "__getattr__":
        monkeypatch.setattr(nn.Module, "_old", nn.Module.__getattr__, raising=False)
    if isinstance(owner, dict):
        monkeypatch.setitem(owner, name, value)
    else:
        monkeypatch.setattr(owner, name, value, raising=False)
    for _ in range(2):
        same(fn(x), net(x))
    monkeypatch.undo()
    same(fn(x), net(x))


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize(
    "mode",
    [
        torch.no_grad,
        torch.inference_mode,
        lambda: torch.autocast("cpu", torch.bfloat16),
        lambda: torch.autocast("cpu", torch.float16),
        lambda: default_dtype(torch.float64),
        lambda: torch.device("meta"),
    ],
    ids=[
        "no_grad",
        "inference_mode",
        "autocast",
        "autocast float16",
        "default dtype",
        "default device",
    ],
)
def test_changes_of_modes_are_seen(mode: Callable[[], Any]) -> None:
    layer = nn.Linear(3, 3)

    def program(x):
        return layer(x), torch.ones(2) * 3

    fn = compiled(program)
    x = torch.randn(2, 3)
    for _ in range(2):
        same(fn(x), program(x))
        with mode():
            same(fn(x), program(x))


def arguments() -> list[tuple[Any, ...]]:
    x, y = torch.randn(4, 3), torch.randn(4, 3)
    return [
        (x, y),
        (x, x),
        (x, x[:]),
        (x, None),
        (None, y),
        (x, 2),
        (x, 2.0),
        (x, True),
        (x, "text"),
        (x.double(), y),
        (x, y.double()),
        (x.t().contiguous().t(), y),
        (x[:2], y[:2]),
        (x[:, :1], y),
        (x.clone().requires_grad_(), y),
        (nn.Parameter(x), y),
        (x.long(), y),
        (x, [y]),
        (x, (y,)),
        (x, {"y": y}),
        (x, {"y": y, "z": 1}),
        (x, {"z": 1, "y": y}),
        (x[0], y[0]),
        (x, float("nan")),
        (x, -0.0),
        (x, 0.0),
        (x, 1 << 70),
        (x.to(torch.bfloat16), y),
        (x, y.expand(2, 4, 3)),
    ]


def of_arguments(x, y):
    if x is None:
        return y
    if y is None or isinstance(y, str):
        return x * (3 if y is None else len(y))
    if isinstance(y, dict):
        return [x + value for value in y.values()]
    if isinstance(y, (list, tuple)):
        return x + y[0], type(y) is list
    x = x.clone()
    x = x * (2 if x.is_contiguous() else 3)
    return x + y if isinstance(y, torch.Tensor) or abs(y) < 9 else x


def test_changes_of_arguments_are_seen() -> None:
    fn = compiled(of_arguments)
    for _ in range(2):
        for x, y in arguments():
            same(fn(x, y), of_arguments(x, y))


def test_aliases_that_appear_and_disappear() -> None:
    def program(x, y):
        x.add_(1)
        return x * y

    fn = compiled(program, fullgraph=False)
    base = torch.randn(6)
    pairs: list[Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]] = [
        lambda t: (t[:3], t[3:].clone()),
        lambda t: (t[:3], t[:3]),
        lambda t: (t[:3], t[1:4]),
        lambda t: (t, t),
        lambda t: (t[:3].clone(), t[3:]),
    ]
    for make in (*pairs, *reversed(pairs)):
        ours, theirs = base.clone(), base.clone()
        same(fn(*make(ours)), program(*make(theirs)))
        same(ours, theirs)


IRRELEVANT: dict[str, Callable[[World], None]] = {
    "unread attribute of the module": act("net.unread = 1"),
    "unread attribute of a layer": act("net.layers[0].unread = []"),
    "unread attribute of an object": act("net.object.unread = 1"),
    "unread dataclass field": act("net.config.unread = 5"),
    "unread attribute deleted": act("net.unread = 1; del net.unread"),
    "unread global": act("globals().__setitem__('UNREAD', UNREAD + 1)"),
    "new global": act("globals().__setitem__('NEW', 1); del globals()['NEW']"),
    "unread function of a module": act("HELPERS.unread = lambda x: -x"),
    "unread class attribute": act("Base.other = 1; del Base.other"),
    "unread class attribute of the module": act("World.other = 1; del World.other"),
    "equal float": act("net.config.amount = float('1.0')"),
    "equal string, another object": act("net.text = ''.join(['c', 'os'])"),
    "equal list": act("net.numbers = [1, 2, 3]"),
    "equal dict": act("net.table = {'a': 1.0, 'b': {'c': [2.0]}}"),
    "equal set": act("net.names = {'y', 'x'}"),
    "equal deque": act("net.queue = collections.deque([1, 2])"),
    "equal OrderedDict": act("net.ordered = collections.OrderedDict(first=2.0, second=3.0)"),
    "equal dataclass": act("net.config = Config()"),
    "equal object": act("net.object = Derived(); net.method = net.object.inherited"),
    "same value stored again": act("net.flag = True; net.numbers[0] = 1"),
    "list changed and put back": act("net.numbers.append(4); net.numbers.pop()"),
    "parameter's values": act("net.weight.data.add_(1)"),
    "parameter's data, as it was": act("net.weight.data = torch.randn(3)"),
    "parameter replaced by its like": act("net.weight = nn.Parameter(torch.randn(3))"),
    "buffer replaced by its like": act("net.offset = torch.zeros(3)"),
    "layer replaced by its like": act("net.layers[0] = nn.Linear(3, 3).eval()"),
    "flag of another module": act("World().train()"),
    "state loaded": act("net.load_state_dict(World().state_dict())"),
    "hook added and removed": act("net.norm.register_forward_hook(hook).remove()"),
    "state_dict hook": act("net.register_state_dict_post_hook(lambda *args: None)"),
    "gradients": act("net(torch.randn(4, 3)).sum().backward(); net.zero_grad()"),
    "training and back": act("net.train(); net.eval()"),
    "attribute of a parameter": act("net.weight.note = 1"),
    "new key of a dict": act("net.table['new'] = 1; net.table['b'][0] = 2"),
    "unread key deleted": act("net.logs.pop('unread')"),
    "order of a dict that is read by key": act("net.table['a'] = net.table.pop('a')"),
    "unread item of a list": act("net.table['b']['c'].append(3.0)"),
    "list that is appended to": act("net.logs['rows'].extend([1, 2])"),
    "list that is appended to, replaced": act("net.logs['rows'] = [7]"),
    "function of the same code": act("net.scaler = make_scaler(3)"),
    "partial of a function of the same code": act(
        "net.partial = functools.partial(make_scaler(2), shift=3)"
    ),
    "keyword defaults of the same values": act("net.scaler.__kwdefaults__ = {'shift': 1}"),
    "other twins": act("net.twins = Derived(), Derived()"),
}


@pytest.mark.parametrize("name", IRRELEVANT)
def test_irrelevant_changes_cost_nothing(name: str) -> None:
    net = World().eval()
    fn = compiled(net)
    x = torch.randn(4, 3)
    for _ in range(2):
        fn(x)
    IRRELEVANT[name](net)
    for _ in range(2):
        same(fn(x), net(x))
    events = flambeau_capture.state_of(fn).events
    assert [event.kind for event in events] == ["capture"], [event.text for event in events]
