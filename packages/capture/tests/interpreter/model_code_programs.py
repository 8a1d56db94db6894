# ruff: noqa
"""Functions and modules in the style of model libraries and training scripts. `PROGRAMS` lists each
with its arguments. (Not a test module.)
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import enum
import functools
import itertools
import math
import operator
import random
import time
import types
import typing
import weakref
import os
import re
import copy
from typing import Any, Dict, List, NamedTuple, Optional, Tuple, Union, Callable
import torch, torch.nn as nn, torch.nn.functional as F

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
PROGRAMS = []


def program(*args):
    def declare(fn):
        PROGRAMS.append((fn, args))
        return fn

    return declare


def prog(cls_or_maker):
    m = cls_or_maker()
    m.eval()

    def run(x, m):
        return m(x)

    run.__name__ = type(m).__name__
    PROGRAMS.append((run, (m,)))
    return cls_or_maker


@dataclasses.dataclass
class Out(collections.OrderedDict):
    last: Optional[torch.Tensor] = None
    hidden: Optional[tuple] = None

    def __post_init__(self):
        for f in dataclasses.fields(self):
            v = getattr(self, f.name)
            if v is not None:
                self[f.name] = v

    def __getitem__(self, k):
        if isinstance(k, str):
            return dict(self.items())[k]
        return self.to_tuple()[k]

    def __setattr__(self, n, v):
        if n in self.keys() and v is not None:
            super().__setitem__(n, v)
        super().__setattr__(n, v)

    def to_tuple(self):
        return tuple(self[k] for k in self.keys())


class Config:
    model_type = "x"

    def __init__(self, **kw):
        self.hidden = kw.pop("hidden", 4)
        self.act = kw.pop("act", "gelu")
        self.layers = 2
        for k, v in kw.items():
            setattr(self, k, v)

    def __getattribute__(self, k):
        return super().__getattribute__(k)

    @property
    def use_return_dict(self):
        return True

    def get(self, k, d=None):
        return getattr(self, k, d)


ACT = {"gelu": F.gelu, "relu": nn.ReLU, "silu": (nn.SiLU, {"inplace": False})}


class ClassInst(collections.OrderedDict):
    def __getitem__(self, k):
        c = super().__getitem__(k)
        cls, kw = c if isinstance(c, tuple) else (c, {})
        return cls(**kw)


ACT2CLS = ClassInst(ACT)


def deprecate(**names):
    def deco(fn):
        @functools.wraps(fn)
        def w(*a, **k):
            for old, new in names.items():
                if old in k:
                    k[new] = k.pop(old)
            return fn(*a, **k)

        return w

    return deco


class Layer(nn.Module):
    def __init__(self, cfg, idx):
        super().__init__()
        self.cfg, self.idx = cfg, idx
        self.q = nn.Linear(cfg.hidden, cfg.hidden)
        self.norm = nn.LayerNorm(cfg.hidden)
        self.drop = nn.Dropout(0.1)
        self.act = ACT2CLS["silu"]

    @deprecate(past="cache")
    def forward(self, h, cache: Optional[Dict] = None, mask=None, **kw) -> Tuple[torch.Tensor, ...]:
        r = h
        h = self.norm(h)
        h = self.act(self.q(h))
        if cache is not None:
            cache.setdefault(self.idx, []).append(h)
        if mask is not None:
            h = h.masked_fill(mask == 0, torch.finfo(h.dtype).min)
        return (r + self.drop(h), *((cache,) if kw.get("output_cache") else ()))


@prog
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.config = Config(foo=3)
        self.layers = nn.ModuleList(Layer(self.config, i) for i in range(2))
        self.heads = nn.ModuleDict({"a": nn.Linear(4, 2), "b": nn.Identity()})
        self.scale = nn.Parameter(torch.ones(4))
        self._cache = collections.deque(maxlen=2)
        self.stats = collections.Counter()
        self.history = []

    @property
    def dtype(self):
        return next(self.parameters()).dtype

    @torch.no_grad()
    def nograd(self, x):
        return x * 2

    def forward(self, x, return_dict=None):
        return_dict = return_dict if return_dict is not None else self.config.use_return_dict
        hs = () if True else None
        cache = {}
        for i, layer in enumerate(self.layers):
            hs += (x,)
            out = layer(x, past=cache, output_cache=True)
            x = out[0]
            self.stats[f"layer{i}"] += 1
        self.history.append(x.mean())
        x = x.to(self.dtype) * self.scale
        heads = {k: h(x) for k, h in self.heads.items()}
        a, b = map(lambda k: heads[k], sorted(heads))
        y = self.nograd(b)
        o = Out(last=x, hidden=hs)
        if not return_dict:
            return o.to_tuple()
        return (
            o.last,
            o["hidden"][0],
            o[0],
            a,
            y,
            len(cache[0]),
            list(o.keys()),
            getattr(self.config, "nope", 5),
            sum(p.numel() for p in self.parameters()),
            [n for n, _ in self.named_children()],
            self.extra_repr(),
            self.training,
        )


@prog
class UNetish(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])
        self.up = nn.ModuleList([nn.Linear(8, 4) for _ in range(3)])
        self.emb = lambda t: torch.sin(
            t[:, None] * torch.exp(-math.log(10000) * torch.arange(2) / 2)
        )
        self.cond: Union[str, None] = "x"

    def forward(self, x, t=None, *, ret=False):
        skips = []
        t = torch.full((x.shape[0],), 3) if t is None else t
        e = self.emb(t.float()).repeat(1, 2)
        for d in self.down:
            x = F.silu(d(x)) + e
            skips.append(x)
        for u, s in zip(self.up, reversed(skips)):
            x = u(torch.cat([x, s], dim=-1))
        for u in self.up[::-1]:
            x = u(torch.cat([x, skips.pop()], -1))
        assert not skips, f"left {len(skips)}"
        match self.cond:
            case "x" | "y":
                x = x + 1
            case None:
                pass
        return x if not ret else (x,)


@prog
class Windows(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(
            collections.OrderedDict([("a", nn.Linear(4, 4)), ("b", nn.ReLU())])
        )
        self.register_buffer("idx", torch.arange(4), persistent=False)
        self.shapes: List[Tuple[int, int]] = [(1, 2), (2, 2)]
        self.fns: Dict[str, Callable] = {"relu": torch.relu, "tanh": torch.tanh}
        self.pos = None

    def windows(self, x, w: int):
        b, c = x.shape
        return x.view(b, c // w, w).permute(1, 0, 2).contiguous().flatten(0, 1)

    def forward(self, x: torch.Tensor):
        *lead, c = x.shape
        pad = (-c) % 8
        x = F.pad(x, (0, pad)) if pad else x
        x = x[..., :c]
        ws = [self.windows(x, w) for w in (1, 2, 4)]
        for (h, w), name in itertools.product(self.shapes, self.fns):
            x = self.fns[name](x * h + w)
        mean, std = (f(x, dim=-1, keepdim=True) for f in (torch.mean, torch.std))
        x = (x - mean) / (std + 1e-5)
        if self.pos is None or self.pos.shape[0] != c:
            self.pos = torch.linspace(0, 1, c)
        n = {k: v for k, v in sorted({"b": 1, "a": 2}.items(), key=operator.itemgetter(1))}
        g = dict(zip(("u", "v"), x.chunk(2, -1)))
        kw = dict(dim=-1) | {"keepdim": True}
        return (
            self.blocks(x) + self.pos + self.idx,
            [w.shape for w in ws],
            n,
            g["u"] @ g["v"].T,
            x.amax(**kw),
            torch.stack([*x.unbind(0)]),
            x.new_zeros(x.shape[:-1] + (2,)),
            x.size()[1:],
            torch.Size([1]) + x.shape,
            functools.reduce(operator.mul, x.shape, 1),
        )


class Stage(enum.IntEnum):
    A = 0
    B = enum.auto()


class Act(str, enum.Enum):
    RELU = "relu"
    GELU = "gelu"

    def fn(self):
        return getattr(F, self.value)


@program(Act.GELU, Stage.B, {"lr": 0.1, "betas": (0.9, 0.99)})
def train_step(x, act, stage, opts):
    w = torch.ones(4, 4) * opts["lr"]
    b1, b2 = opts["betas"]
    losses = collections.defaultdict(list)
    for step in range(1, 4):
        y = act.fn()(x @ w)
        loss = (y**2).mean()
        losses["mse"].append(loss)
        if step % 2 == 0:
            losses["even"] += [step]
        w = w - b1**step * loss
        if stage is Stage.B and step > 2:
            break
    else:
        raise RuntimeError
    opts["lr"] *= 0.5
    opts.setdefault("hist", []).extend(losses)
    return (
        {k: torch.stack(v) if isinstance(v[0], torch.Tensor) else v for k, v in losses.items()},
        f"{opts['lr']:.3f}",
        act == "gelu",
        {Act.RELU: 1}.get(act),
    )


class Registry:
    _items: Dict[str, Any] = {}

    @classmethod
    def register(cls, name):
        def deco(f):
            cls._items[name] = f
            return f

        return deco

    def __class_getitem__(cls, k):
        return cls._items[k]


@Registry.register("dbl")
def dbl(x):
    return x * 2


class Compose:
    def __init__(self, *fs):
        self.fs = fs

    def __call__(self, x):
        for f in self.fs:
            x = f(x)
        return x

    def __rshift__(self, o):
        return Compose(*self.fs, o)

    def __iter__(self):
        yield from self.fs

    def __len__(self):
        return len(self.fs)

    def __bool__(self):
        return True


@program(Compose(torch.sin, dbl))
def registry(x, c):
    d = c >> torch.cos >> (lambda t: t + 1)
    return Registry["dbl"](x), d(x), len(d), [getattr(f, "__name__", "?") for f in d], bool(c)


class Lazy:
    def __init__(self, f):
        self.f = f
        functools.update_wrapper(self, f)

    def __get__(self, o, t):
        if o is None:
            return self
        v = o.__dict__[self.f.__name__] = self.f(o)
        return v


class Cfg2:
    __slots__ = ("a", "__weakref__", "__dict__")

    def __init__(self):
        self.a = 2

    @Lazy
    def big(self):
        return self.a * 10

    def __enter__(self):
        self.a += 1
        return self

    def __exit__(self, t, v, tb):
        self.a -= 1
        return t is not None and issubclass(t, KeyError)


@program(Cfg2())
def context_objects(x, c):
    with c as d, torch.no_grad():
        y = x * d.a
        with c:
            {}["z"]
    with torch.enable_grad(), contextlib.nullcontext():
        z = x + c.a
    try:
        with c:
            raise ValueError("q")
    except ValueError as e:
        r = str(e)
    return y, z, c.big, c.big, r, c.a


def gen_batches(x, n):
    for i in range(0, x.shape[0], n):
        j = yield x[i : i + n]
        if j:
            yield j


def flatten(t):
    for v in t:
        if isinstance(v, (list, tuple)):
            yield from flatten(v)
        else:
            yield v


@program()
def generators(x):
    tot = torch.zeros(4)
    for b in gen_batches(x, 2):
        tot = tot + b.sum(0)
    g = gen_batches(x, 1)
    first = next(g)
    sent = g.send(7)
    rest = list(g)
    it = iter(flatten([1, [2, (3, [4])]]))
    return (
        tot,
        first,
        sent,
        len(rest),
        list(it),
        max(flatten([[1], 5])),
        sum(v for v in flatten([1, [2]]) if v > 1),
        dict((k, i) for i, k in enumerate("ab")),
        tuple(x[i] for i in range(2)),
        next((v for v in [1, 2] if v > 1), None),
        any(isinstance(v, int) for v in [x]),
        [*gen_batches(x, 3)],
        "".join(c for c in "ab"),
        set(v % 2 for v in range(3)),
        sorted((v for v in [2, 1]), reverse=True),
        list(zip(flatten([1, 2]), flatten([3, 4]))),
        list(map(str, flatten([1]))),
    )


class Tree(NamedTuple):
    t: torch.Tensor
    kids: tuple = ()

    def map(self, f):
        return Tree(f(self.t), tuple(k.map(f) for k in self.kids))


@program(Tree(X, (Tree(X + 1),)))
def trees(x, t):
    u = t.map(lambda v: v * 2)
    import torch.utils._pytree as pt

    leaves, spec = pt.tree_flatten({"a": [x, (x + 1,)], "b": x})
    back = pt.tree_unflatten([l * 2 for l in leaves], spec)
    return u, u.kids[0].t, len(leaves), back, pt.tree_map(lambda v: v + 1, [1, {"k": x}])


@program(True, None, 0.5, "mean")
def flags(x, a, b, p, red):
    def inner(*, a=a, b=b):
        return a, b

    nonl = 0

    def bump():
        nonlocal nonl
        nonl += 1
        return nonl

    y = x if a and b is None and not (p < 0 or p > 1) else None
    y = y if y is not None else x * 0
    z = {"mean": torch.mean, "sum": torch.sum}.get(red, lambda v: v)(y)
    out = [bump() for _ in range(3)]
    i = 5
    while (i := i - 1) > 2:
        z = z + i
    x0, (x1, *xr) = x[0], x
    del x0
    lam = lambda *a, **k: (a, k)
    return (
        y,
        z,
        out,
        nonl,
        inner(b=3),
        xr[-1],
        lam(*[1], **{"q": 2}),
        1 if not a else 2 if b else 3,
        not a,
        -p,
        p if p else 0,
        [i for i in range(5) if i % 2 if i > 1],
        0 < p < 1 <= 2,
        a is not b,
        (1, 2) in [(1, 2)],
        x.shape[0] == 3 and "ok" or "no",
        print.__name__,
        __name__.split(".")[0],
        isinstance(p, float),
        type(p)(3),
        [[r * c for c in range(2)] for r in range(2)],
    )
