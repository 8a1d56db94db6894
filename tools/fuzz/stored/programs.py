"""Programs of features, written as modules; which alternative each process has.

seed  ->  features, root, arguments          the same in each process
seed, process  ->  an alternative of each place     «2|3» -> 2

Seeds from OF_DATA on are of programs whose sizes depend on data, or change while they train.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tools.fuzz.stored.features import FEATURES, FEATURES_OF_DATA

if TYPE_CHECKING:
    from pathlib import Path

_PLACE = re.compile("«([^«»]*)»")
OF_DATA = 1_000_000
_SAME = 0.3
"""The share of programs that a process finds as they were."""

_MOST_FEATURES = 3

_ROOTS = {
    "function": "def root(x):\n{body}\n    return x\nROOT = root",
    "lambda": "def root(x):\n{body}\n    return x\nROOT = lambda x: root(x)",
    "method": (
        "class Root:\n    def root(self, x):\n{inner}\n        return x\nROOT_OBJECT = Root()\n"
        "ROOT = ROOT_OBJECT.root"
    ),
    "module": (
        "class Root(nn.Module):\n    def forward(self, x):\n{inner}\n        return x\n"
        "ROOT = Root()"
    ),
    "closure": (
        "def make(held):\n    def root(x):\n{inner}\n        return x * held\n    return root\n"
        "ROOT = make(«1.5|2.5»)"
    ),
    "partial": (
        "def root(n, x):\n{body}\n    return x * n\nROOT = functools.partial(root, «1.5|2.5»)"
    ),
    "wrapped": (
        "def around(f):\n    @functools.wraps(f)\n    def run(*args):\n"
        "        return f(*args) * «2|3»\n    return run\n"
        "@around\ndef root(x):\n{body}\n    return x\nROOT = root"
    ),
}

_ARGUMENTS = (
    "torch.randn(4, 6)", "torch.randn(4, 6, requires_grad=True)", "torch.randn(5, 6)",
    "torch.randn(6, 4).t()", "torch.randn(4, 6, dtype=torch.float64)", "torch.randn(1, 6)",
    "torch.randn(4, 6).requires_grad_().exp()", "torch.randn(0, 6)",
)  # fmt: skip

_ARGUMENTS_OF_DATA = (
    "torch.randn(4, 6)", "torch.randn(9, 6)", "torch.randn(6, 7).t()", "torch.rand(5, 6) - 2",
    "torch.randn(1, 6)", "torch.randn(0, 6)", "torch.randn(8, 6, dtype=torch.float64)",
    "torch.randn(4, 6, requires_grad=True)", "torch.randn(7, 6, requires_grad=True)",
    "torch.randn(3, 6, requires_grad=True)", "torch.randn(12, 6)[::2].requires_grad_()",
)  # fmt: skip

_OPTIONS_OF_DATA = (
    "{}", "{'fullgraph': True}", "{'fullgraph': True}", "{'dynamic': True}",
    "{'fullgraph': True, 'dynamic': True}",
)  # fmt: skip

_OPTIONS = ("{}", "{}", "{}", "{'dynamic': True}", "{'dynamic': False}")

_HEAD = """\
import abc, builtins, collections, contextlib, contextvars, copy, dataclasses, datetime, decimal
import enum, fractions, functools, inspect, io, itertools, logging, math, os, pathlib, random, re
import statistics, sys, threading, time, types, typing, warnings, weakref
from unittest import mock

import numpy as np
import torch
import torch.utils.checkpoint
from torch import nn
from torch.nn import functional

import flambeau
from tools.fuzz.stored.surroundings import *
"""


@dataclass(frozen=True)
class Program:
    """The features of a seed, by name."""

    seed: int
    features: tuple[str, ...]
    root: str

    @property
    def of_data(self) -> bool:
        return self.seed >= OF_DATA

    @property
    def name(self) -> str:
        return f"stored_{self.seed}"

    @property
    def helper(self) -> str:
        return f"helper_{self.seed}"


def program_of(seed: int) -> Program:
    """The program of a seed; each feature leads a program of the first seeds."""
    rng = random.Random(seed)
    names = sorted(FEATURES_OF_DATA if seed >= OF_DATA else FEATURES)
    others = rng.sample(names, rng.randrange(_MOST_FEATURES))
    return Program(seed, (names[seed % len(names)], *others), rng.choice(sorted(_ROOTS)))


def write(program: Program, process: int, folder: Path) -> bool:
    """Write the program's modules as a process has them; whether they are as in the first one."""
    texts = _texts(program)
    first = _choices(program, 0, texts)
    rng = random.Random(f"{program.seed} {process}")
    choices = first if process == 0 or rng.random() < _SAME else _choices(program, process, texts)
    for name, text in zip((program.name, program.helper), texts, strict=True):
        at = iter(choices[name])
        (folder / f"{name}.py").write_text(_PLACE.sub(lambda _, at=at: next(at), text))
    return choices == first


def _choices(program: Program, process: int, texts: tuple[str, str]) -> dict[str, list[str]]:
    """For each module the alternatives of its places: other than at first of some."""
    chosen = {}
    start, rng = random.Random(program.seed), random.Random(f"{program.seed} edit {process}")
    share = rng.choice((0.1, 0.5, 1.0))
    for name, text in zip((program.name, program.helper), texts, strict=True):
        found = []
        for place in _PLACE.findall(text):
            alternatives = place.split("|")
            at = start.randrange(len(alternatives))
            if process and rng.random() < share:
                at = rng.randrange(len(alternatives))
            found.append(alternatives[at])
        chosen[name] = found
    return chosen


def _texts(program: Program) -> tuple[str, str]:
    mains, helpers, lines, contexts = [], [], [], []
    for number, name in enumerate(program.features):
        feature = (FEATURES_OF_DATA if program.of_data else FEATURES)[name]
        fill = {"$": str(number), "{helper}": program.helper, "{unique}": f"p{program.seed}"}

        def filled(text: str, fill: dict[str, str] = fill) -> str:
            for old, new in fill.items():
                text = text.replace(old, new)
            return text

        mains.append(filled(feature.main))
        helpers.append(filled(feature.helper))
        lines.append(f"x = {filled(feature.expression)}")
        contexts.append(filled(feature.context) or "contextlib.nullcontext()")
    rng = random.Random(program.seed)
    indented = {
        name: "\n".join(f"{' ' * width}{line}" for line in lines)
        for name, width in (("body", 4), ("inner", 8))
    }
    root = _ROOTS[program.root]
    for name, text in indented.items():
        root = root.replace(f"{{{name}}}", text)
    arguments, options = (
        (_ARGUMENTS_OF_DATA, _OPTIONS_OF_DATA) if program.of_data else (_ARGUMENTS, _OPTIONS)
    )
    first, second = rng.sample(arguments, 2)
    more = [rng.choice(arguments)]
    chosen = f"«{rng.choice(options)}|{rng.choice(options)}»"
    if program.of_data:  # the third call is of the second one's kind, perhaps
        more.append(f"«{rng.choice(arguments)}|{rng.choice(arguments)}»")
    tail = [
        f"CONTEXTS = lambda: [{', '.join(contexts)}]",
        f"ARGUMENTS = lambda: [«{first}|{second}», {', '.join(more)}]",
        f"OPTIONS = {chosen}",
    ]
    main = "\n".join([_HEAD, f"import {program.helper}", *mains, root, *tail, ""])
    return main, "\n".join([_HEAD, *helpers, ""])
