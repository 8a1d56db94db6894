"""Whatever the program changes between two calls, the compiled callable gives what eager gives."""

from __future__ import annotations

import types

import pytest
import torch
from capture_harness import compiled, same
from torch import nn

X = torch.randn(3, 4)
GAIN = 2.0
TABLE = {"offset": 1.0, "unused": 0}
STEPS = [1, 2]


def scale(x, by=3):
    return x * by


class Options:
    shift = 0.5

    def __init__(self):
        self.power = 2
        self.names = ("a", "b")
        self.weights = {"a": 1.0, "b": 2.0}
        self.inner = types.SimpleNamespace(depth=1)

    @property
    def doubled(self):
        return self.power * 2

    def apply(self, x):
        for name in self.names:
            x = x + self.weights[name]
        return x**self.power + self.shift * self.doubled + self.inner.depth


class Net(nn.Module):
    def __init__(self, options):
        super().__init__()
        self.options = options
        self.first = nn.Linear(4, 4)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(2)])
        self.drop = nn.Dropout(0.5)
        self.register_buffer("mean", torch.ones(4))
        self.callback = None
        self.extra = []

    def helper(self, x):
        return x + 1

    def forward(self, x, **flags):
        x = self.drop(self.first(x)) + self.mean
        for block in self.blocks:
            x = block(x)
        if self.callback is not None:
            x = self.callback(x)
        for item in self.extra:
            x = x + item
        if hasattr(self, "late"):
            x = x + self.late
        if flags.get("negate"):
            x = -x
        x = scale(self.helper(x)) * GAIN + TABLE["offset"] + sum(STEPS)
        return self.options.apply(x)


def replace_layer(net):
    net.blocks[1] = nn.Sequential(nn.Linear(4, 4), nn.Tanh())


def replace_parameter(net):
    net.first.weight = nn.Parameter(torch.randn(4, 4))


def share_parameter(net):
    net.blocks[0][0].weight = net.first.weight


def freeze(net):
    net.first.weight.requires_grad_(False)


def to_double(net):
    net.double()


def change_data(net):
    net.first.weight.data = torch.randn(4, 4)


def remove_bias(net):
    net.first.bias = None


def add_forward_hook(net):
    net.blocks[0].register_forward_hook(lambda module, args, out: out * 2)


def set_callback(net):
    net.callback = torch.sin


def set_bound_callback(net):
    net.callback = net.options.apply


def instance_forward(net):
    net.first.forward = lambda x: x * 5


def instance_helper(net):
    net.helper = lambda x: x - 3


def append_extra(net):
    net.extra.append(2)


def extra_tensor(net):
    net.extra.append(torch.ones(4))


def late_attribute(net):
    net.late = 4.0


def late_buffer(net):
    net.register_buffer("late", torch.full((4,), 2.0))


def more_blocks(net):
    net.blocks.append(nn.Sequential(nn.Linear(4, 4)))


def option_power(net):
    net.options.power = 3


def option_names(net):
    net.options.names = ("b",)


def option_weight(net):
    net.options.weights["a"] = 5.0


def option_inner(net):
    net.options.inner.depth = 7


def option_replaced(net):
    net.options = Options()
    net.options.power = 1


def option_subclass(net):
    class Other(Options):
        shift = 9.0

    net.options.__class__ = Other


def instance_hides_class_attribute(net):
    net.options.shift = 4.0


def train_mode(net):
    net.drop.p = 0.0
    net.train()


def new_mean(net):
    net.mean = torch.zeros(4)


def mean_in_place(net):
    net.mean.fill_(3)


MUTATIONS = [
    replace_layer,
    replace_parameter,
    share_parameter,
    freeze,
    to_double,
    change_data,
    remove_bias,
    add_forward_hook,
    set_callback,
    set_bound_callback,
    instance_forward,
    instance_helper,
    append_extra,
    extra_tensor,
    late_attribute,
    late_buffer,
    more_blocks,
    option_power,
    option_names,
    option_weight,
    option_inner,
    option_replaced,
    option_subclass,
    instance_hides_class_attribute,
    train_mode,
    new_mean,
    mean_in_place,
]


@pytest.mark.parametrize("mutate", MUTATIONS, ids=lambda mutate: mutate.__name__)
def test_changes_of_objects(mutate):
    torch.manual_seed(0)
    net = Net(Options()).eval()
    fn = compiled(net)
    same(fn(X), net(X))
    mutate(net)
    x = X.to(net.mean.dtype)
    for _ in range(2):
        same(fn(x), net(x))


@pytest.mark.parametrize(
    ("owner", "name", "value"),
    [
        (None, "GAIN", 7.0),
        (None, "TABLE", {"offset": 3.0}),
        (None, "STEPS", [5]),
        (None, "scale", lambda x: x / 2),
        (scale, "__defaults__", (9,)),
        (scale, "__code__", (lambda x, by=3: x - by).__code__),
        (Options, "shift", 8.0),
        (Options, "doubled", property(lambda self: 1)),
        (Options, "apply", lambda self, x: x),
        (Net, "helper", lambda self, x: x * 11),
        (nn.ReLU, "forward", lambda self, x: x),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_changes_of_definitions(owner, name, value, monkeypatch):
    net = Net(Options()).eval()
    fn = compiled(net)
    same(fn(X), net(X))
    if owner is None:
        monkeypatch.setitem(globals(), name, value)
    else:
        monkeypatch.setattr(owner, name, value)
    for _ in range(2):
        same(fn(X), net(X))
    monkeypatch.undo()
    same(fn(X), net(X))


def test_changes_of_modes_and_calls():
    net = Net(Options()).eval()
    fn = compiled(net)
    same(fn(X), net(X))
    with torch.no_grad():
        same(fn(X), net(X))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        same(fn(X), net(X))
    same(fn(X, negate=True), net(X, negate=True))
    same(fn(X, negate=False), net(X, negate=False))
    same(fn(X[:2]), net(X[:2]))
    same(fn(X.t().contiguous().t()), net(X))
    same(fn(X.clone().requires_grad_()), net(X.clone().requires_grad_()))
    handle = nn.modules.module.register_module_forward_hook(lambda module, args, out: out + 1)
    try:
        same(fn(X), net(X))
    finally:
        handle.remove()
    same(fn(X), net(X))
