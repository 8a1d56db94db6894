"""Random programs that communicate, as text: functional and in-place collectives of several groups
between kernels, products, views and writes.

    program_of(7)  ->  "def program(x, w, k, y, world, pair, own): ..."

`x` is f32[n, 4], `w` f32[4, 4], `k` i64[n, 4], n a multiple of 8 or 0; `y` is f32[m, 4], m another
on each rank. `world` and `pair` are groups of two, `own` of this rank alone. `waited(t)` is t once
it has arrived.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from fractions import Fraction

PROLOGUE = """\
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fn

"""


@dataclass
class Variable:
    """A tensor of a program: `rows` in units of n, `dtype` as torch names it; `own`: made by the
    program, contiguous, and not a window on another's memory; `grad`: it may require grad.
    """

    name: str
    rows: Fraction
    dtype: str
    own: bool
    grad: bool


class _Writer:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.lines: list[str] = []
        self.count = 0
        self.differentiable = self.random.random() < 0.5
        self.variables = [
            Variable("x", Fraction(1), "float32", False, True),
            Variable("k", Fraction(1), "int64", False, False),
        ]
        self.local = "y"
        self.local_grad = True

    def new(self, text: str, rows: Fraction, dtype: str, grad: bool, own: bool = True) -> None:
        name = f"v{self.count}"
        self.count += 1
        self.lines.append(f"{name} = {text}")
        self.variables.append(Variable(name, rows, dtype, own, grad and dtype not in ("int64",)))

    def pick(self, *, floating: bool = False) -> Variable:
        recent = self.variables[-4:] if self.random.random() < 0.6 else self.variables
        choice = [v for v in recent if v.dtype != "int64" or not floating]
        return self.random.choice(choice or [self.variables[0]])

    def group(self) -> tuple[str, int]:
        name = self.random.choice(["world", "world", "pair", "own"])
        return name, 1 if name == "own" else 2

    # ------------------------------------------------------------ steps

    def kernel(self) -> None:
        a = self.pick(floating=True)
        text = self.random.choice(["({0} * 2 + 1)", "{0}.sin()", "torch.tanh({0})", "{0} - 0.5"])
        self.new(text.format(a.name), a.rows, a.dtype, a.grad)

    def product(self) -> None:
        a = self.pick(floating=True)
        self.new(f"({a.name} @ w.to({a.name}.dtype)).tanh()", a.rows, a.dtype, True)

    def sum_of_two(self) -> None:
        a, b = self.pick(floating=True), self.pick()
        order = ["int64", "bfloat16", "float32", "float64"]
        dtype = max(a.dtype, b.dtype, key=order.index)
        if a.rows == b.rows:
            text = f"{a.name} + {b.name} * 0.5" if b.dtype != "int64" else f"{a.name} + {b.name}"
        else:
            text = f"{a.name} + {b.name}.sum(0, keepdim=True)"
        self.new(text, a.rows, dtype, a.grad or b.grad)

    def cast(self) -> None:
        a = self.pick(floating=True)
        dtype = self.random.choice(["float32", "float64", "bfloat16"])
        self.new(f"{a.name}.to(torch.{dtype})", a.rows, dtype, a.grad, own=False)

    def view(self) -> None:
        a = self.pick()
        text = self.random.choice(
            ["{0}.view(-1, 4)", "{0}.flip(0)", "{0}.t().contiguous().t()", "{0}[:, :]"]
        )
        self.new(text.format(a.name), a.rows, a.dtype, a.grad, own=False)

    def slices(self) -> None:
        a = self.pick()
        if a.rows > Fraction(1, 4):
            at = self.random.choice([": {0}.shape[0] // 2", "{0}.shape[0] // 2 :", "::2"])
            text = f"{a.name}[{at.format(a.name)}]"
            self.new(text, a.rows / 2, a.dtype, a.grad, own=False)

    def local_work(self) -> None:
        """On sizes that differ between ranks."""
        group, _ = self.group()
        self.lines.append(f"{self.local} = ({self.local} @ w).sin()")
        if self.random.random() < 0.5:
            total = f"{self.local}.sum(0, keepdim=True)"
            self.lines.append(f"s = waited(fn.all_reduce({total}, 'sum', {group}))")
            self.lines.append(f"{self.local} = {self.local} + s * 0.1")

    def mutation(self) -> None:
        a = self.pick(floating=True)
        if a.grad and self.differentiable:
            # A backward may have saved the tensor itself.
            self.new(f"{a.name}.clone()", a.rows, a.dtype, True)
            a = self.variables[-1]
        text = self.random.choice(["{0}.add_(1)", "{0}.mul_(0.5)", "{0}[:, 1:].zero_()"])
        self.lines.append(text.format(a.name))

    def functional(self) -> None:
        a = self.pick()
        group, size = self.group()
        kind = self.random.choice(["reduce", "gather", "scatter", "exchange", "broadcast"])
        sums = a.grad and self.differentiable
        op = "sum" if sums else self.random.choice(["sum", "max", "min", "product"])
        if kind == "reduce":
            text, rows = f"fn.all_reduce({a.name}, '{op}', {group})", a.rows
        elif kind == "gather" and a.rows * size <= 4:
            text, rows = f"fn.all_gather_single({a.name}, 0, {group})", a.rows * size
        elif kind == "scatter" and a.rows / size >= Fraction(1, 4):
            text = f"fn.reduce_scatter_single({a.name}, '{op}', 0, {group})"
            rows = a.rows / size
        elif kind == "exchange":
            text, rows = f"fn.all_to_all_single({a.name}, None, None, {group})", a.rows
        elif kind == "broadcast" and not sums and group != "own":
            text = f"fn.broadcast({a.name}, {self.random.randrange(size)}, {group})"
            rows = a.rows
        else:
            return
        if kind in ("exchange", "gather", "scatter") and not a.own:
            text = text.replace(a.name, f"{a.name}.contiguous()", 1)
        self.new(f"waited({text})", rows, a.dtype, a.grad)

    def wide_gather(self) -> None:
        """Along the columns, and back to four of them."""
        a = self.pick()
        if not (self.differentiable and a.grad):
            text = f"waited(fn.all_gather_single({a.name}.contiguous(), 1, world))[:, 2:6]"
            self.new(text, a.rows, a.dtype, a.grad, own=False)

    def coalesced(self) -> None:
        a, b = self.pick(floating=True), self.pick(floating=True)
        group, size = self.group()
        if a.dtype != b.dtype:
            return
        both = f"[{a.name}.contiguous(), {b.name}.contiguous()]"
        name = f"c{len(self.lines)}"
        if self.random.random() < 0.5:
            call, factor = f"fn.all_reduce_coalesced({both}, 'sum', {group})", 1
        elif max(a.rows, b.rows) * size <= 4:
            call, factor = f"fn.all_gather_single_coalesced({both}, {group})", size
        else:
            return
        self.lines.append(f"{name} = [waited(t) for t in {call}]")
        self.new(f"{name}[0]", a.rows * factor, a.dtype, a.grad)
        self.new(f"{name}[1]", b.rows * factor, b.dtype, b.grad)

    def in_place(self) -> None:
        a = self.pick()
        group, size = self.group()
        if a.grad and self.differentiable:
            # Eager records nothing of in-place collectives.
            self.new(f"{a.name}.detach().clone()", a.rows, a.dtype, False)
            a = self.variables[-1]
        if not a.own and a.name not in ("x", "k"):
            self.new(f"{a.name}.contiguous()", a.rows, a.dtype, a.grad, own=False)
            a = self.variables[-1]
        kind = self.random.choice(["reduce", "broadcast", "gather", "scatter", "exchange", "list"])
        if kind == "reduce":
            op = self.random.choice(["SUM", "MAX", "PRODUCT"])
            part = a.name
            if self.random.random() < 0.3:
                part = f"{a.name}[{a.name}.shape[0] // 2 :]"
            self.lines.append(f"dist.all_reduce({part}, dist.ReduceOp.{op}, group={group})")
        elif kind == "broadcast":
            self.lines.append(f"dist.broadcast({a.name}, group=world, src=1)")
        elif kind == "gather" and a.rows * size <= 4:
            rows = f"{size} * {a.name}.shape[0]"
            self.new(f"{a.name}.new_empty(({rows}, 4))", a.rows * size, a.dtype, False)
            out = self.variables[-1].name
            self.lines.append(f"dist.all_gather_into_tensor({out}, {a.name}, group={group})")
        elif kind == "scatter" and a.rows / size >= Fraction(1, 4):
            rows = f"{a.name}.shape[0] // {size}"
            self.new(f"{a.name}.new_empty(({rows}, 4))", a.rows / size, a.dtype, False)
            out = self.variables[-1].name
            self.lines.append(f"dist.reduce_scatter_tensor({out}, {a.name}, group={group})")
        elif kind == "exchange":
            self.new(f"torch.empty_like({a.name})", a.rows, a.dtype, False)
            out = self.variables[-1].name
            self.lines.append(f"dist.all_to_all_single({out}, {a.name}, group={group})")
        elif kind == "list":
            name = f"p{len(self.lines)}"
            self.lines.append(f"{name} = [torch.empty_like({a.name}) for _ in range({size})]")
            self.lines.append(f"dist.all_gather({name}, {a.name}, group={group})")
            self.new(f"{name}[-1]", a.rows, a.dtype, False)

    def text(self) -> str:
        steps = [
            (self.kernel, 3), (self.product, 2), (self.sum_of_two, 3), (self.cast, 1),
            (self.view, 1), (self.slices, 1), (self.local_work, 1), (self.mutation, 2),
            (self.functional, 5), (self.wide_gather, 1), (self.coalesced, 1), (self.in_place, 3),
        ]  # fmt: skip
        functions = [step for step, _ in steps]
        weights = [weight for _, weight in steps]
        for step in self.random.choices(functions, weights, k=self.random.randint(3, 14)):
            step()
        made = [v.name for v in self.variables[2:]]
        results = sorted({*self.random.sample(made, min(len(made), 4)), *made[-1:]})
        self.lines.append(f"return ({', '.join([*results, self.local])},)")
        body = "\n    ".join(self.lines)
        return f"def program(x, w, k, y, world, pair, own):\n    {body}\n"


def program_of(seed: int) -> tuple[str, bool]:
    """A program's text, and whether it may run with arguments that require grad."""
    writer = _Writer(seed)
    text = writer.text()
    return PROLOGUE + text, writer.differentiable
