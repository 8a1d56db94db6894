"""Random stacks of equal layers, and ways of training them, as the text of Python programs.

What they consist of is in the texts beside this file:

    statements.txt    what a layer makes | what it does to `x` (batch, 4, 8), `h` (batch, 8); first
                      those with which layers repeat in a captured graph, and can be left out
    changes.txt       what is changed of the list `layers`; i and j are numbers of layers
    models.txt        what a model does with its layers, and what it returns
    calls.txt         what is compiled: a function of the model and `x`
    passes.txt        how it is trained; `show` notes results for the comparison
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

FEWEST, MOST = 13, 25


def _read(name: str, separator: str = "\n") -> tuple[str, ...]:
    text = Path(__file__).with_name(f"{name}.txt").read_text().strip("\n")
    return tuple(text.split(separator))


PURE, OTHERS = (tuple(each.split("\n")) for each in _read("statements", "\n\n"))
CHANGES = _read("changes")
MODELS = _read("models", "\n\n")
CALLS = _read("calls")
PASSES = _read("passes")

PRELUDE = '''\
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 3 * x * x


class Through(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        return x * scale

    @staticmethod
    def backward(ctx, g):
        return g, None


def leaves(results):
    return [each for each in tree_leaves(results) if each is not None]


def total(results, power=1):
    """A number that depends on all results that have a gradient."""
    parts = [torch.zeros((), dtype=torch.float64)]
    for each in leaves(results):
        if each.requires_grad:
            weights = torch.linspace(1, 2, each.numel(), dtype=each.dtype).view(each.shape)
            parts.append((each**power * weights).sum())
    return torch.stack(parts).sum()


def noted(params):
    """The gradients that hooks of parameters are called with, listed by parameter."""
    log = [[] for _ in params]
    for p, own in zip(params, log):
        p.register_hook(lambda g, own=own: own.append(g.clone()))
    return log


def halve(p):
    p.grad.mul_(0.5)


def step(p):
    """An optimizer that steps as soon as a gradient is accumulated."""
    p.data.sub_(p.grad, alpha=0.01)
    p.grad = None


def tie(layer, other):
    """The first parameter of a layer is another's as well."""
    names = [name for name, p in layer.named_parameters() if p.dim() == 2 and "_" not in name]
    for name in names[:1]:
        inner, _, last = name.rpartition(".")
        owner, mine = other.get_submodule(inner), layer.get_parameter(name)
        if getattr(owner, last).shape == mine.shape:
            setattr(owner, last, mine)
'''


@dataclass(frozen=True)
class Stack:
    """A program: the statements of each kind of layer, and what is done with the layers."""

    count: int
    kinds: tuple[tuple[str, ...], ...]
    changes: tuple[str, ...]
    model: str
    call: str
    passes: tuple[str, ...]

    def text(self) -> str:
        """The program."""
        lines = [PRELUDE]
        for number, statements in enumerate(self.kinds):
            lines += _layer(number, statements)
        names = ", ".join(f"Layer{number}" for number in range(len(self.kinds)))
        lines += [
            *("", "class Model(nn.Module):", "    def __init__(self):"),
            "        super().__init__()",
            f"        kinds = [{names}]",
            f"        layers = [kinds[at % len(kinds)](at) for at in range({self.count})]",
            *(f"        {change}" for change in self.changes),
            "        self.layers = nn.ModuleList(layers)",
            "        self.shared = nn.Parameter(torch.rand(8, 8) * 0.3)",
            "        self.mask = nn.Parameter(torch.randn(4, 4))",
            "        self.head = nn.Linear(8, 8)",
            '        self.register_buffer("scale", torch.rand(8) + 0.5)',
            '        self.register_buffer("cos", torch.rand(4, 4))',
            '        self.register_buffer("sin", torch.rand(4, 4))',
            '        self.register_buffer("ids", torch.tensor([3, 0, 0, 4]))',
            *("", "    def forward(self, x):"),
            "        start, h, olds = x, x.mean(1), [x]",
            "        y = total = 0.0",
            *(f"        {line}" for line in self.model.split("\n")),
            *("", "", "def program(model, x):", f"    {self.call}"),
            *("", "", "def train(model, call, x, show):"),
            "    params = [p for p in model.parameters() if p.requires_grad]",
            "    optimizer = torch.optim.SGD(params, 0.01)",
            *(f"    {each}" for each in self.passes),
        ]
        return "\n".join(lines) + "\n"

    def smaller(self) -> Iterator[Stack]:
        """Programs with something left out."""
        if len(self.passes) > 1:
            for at in range(len(self.passes)):
                yield replace(self, passes=_without(self.passes, at))
        for at in range(len(self.changes)):
            yield replace(self, changes=_without(self.changes, at))
        if len(self.kinds) > 1:
            for at in range(len(self.kinds)):
                yield replace(self, kinds=_without(self.kinds, at))
        for at, statements in enumerate(self.kinds):
            for number in reversed(range(len(statements))):
                shorter = _without(statements, number)
                if shorter:
                    yield replace(self, kinds=(*self.kinds[:at], shorter, *self.kinds[at + 1 :]))
        if self.model != MODELS[0]:
            yield replace(self, model=MODELS[0])
        if self.call != CALLS[0]:
            yield replace(self, call=CALLS[0])
        if self.passes != PASSES[:1]:
            yield replace(self, passes=PASSES[:1])


def _without(items: tuple[str, ...], at: int) -> tuple[str, ...]:
    return (*items[:at], *items[at + 1 :])


def _layer(number: int, statements: tuple[str, ...]) -> list[str]:
    made, done = [], []
    for position, statement in enumerate(statements):
        before, _, after = statement.partition("| ")
        name = str(position)
        made.append(f"        {before.strip().replace('{n}', name)}")
        done.append(f"        {after.replace('{n}', name)}")
    return [
        *("", f"class Layer{number}(nn.Module):", "    def __init__(self, index):"),
        *("        super().__init__()", "        self.index, self.late = index, False"),
        *(line for line in made if line.strip()),
        *("", "    def forward(self, x, h, top, olds):", "        if self.late:"),
        "            x = x * 1.25",
        *(*done, "        return x, h", ""),
    ]


def stack_of(seed: int) -> Stack:
    """The program of a seed."""
    draw = random.Random(seed)
    repeats = draw.random() < 0.8
    statements = PURE if repeats else PURE + OTHERS
    kinds = tuple(
        tuple(draw.choices(statements, k=draw.choice((1, 2, 2, 3, 4))))
        for _ in range(1 if repeats and draw.random() < 0.8 else draw.choice((1, 2, 3)))
    )
    count = draw.randint(FEWEST, MOST) * (1 if len(kinds) == 1 else 2)
    changes = [
        draw.choice(CHANGES).format(i=draw.randrange(count), j=draw.randrange(count))
        for _ in range(draw.choice((0, 0, 0, 1, 1, 2)))
    ]
    model = MODELS[0] if draw.random() < 0.5 else draw.choice(MODELS)
    call = CALLS[0] if draw.random() < 0.8 else draw.choice(CALLS)
    passes = tuple(draw.choices(PASSES, k=draw.choice((1, 1, 2))))
    return Stack(count, kinds, tuple(changes), model, call, passes)
