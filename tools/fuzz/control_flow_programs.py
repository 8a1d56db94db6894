"""Random programs of torch.cond, while_loop, scan, map and associative_scan, nested in one another,
in function transforms, checkpoints and regions, with closures, random numbers and writes.

A program is one text of two namespaces of operators: torch's, which is compiled, and Python's, the
reference, since eager's operators refuse some of these programs. Every value is (rows, 4) or, in
the function of a scan or a map, (4,).
"""

from __future__ import annotations

import random

UNARY = """
{a}.sin()
{a}.tanh() * 2
{a}.exp().clamp(max=3.0)
{a}.relu() + 0.1
{a} * 0.5 - 1
{a}.flip(-1)
{a}.softmax(-1)
{a}.cumsum(-1) * 0.3
{a} - {a}.mean(-1, keepdim=True)
{a} @ w
torch.nn.functional.layer_norm({a}, (4,))
({a} > 0).to({a}.dtype) * {a}
{a}.roll(1, -1)
{a}.detach() + {a}
{a}.clone()
{a}
""".strip().splitlines()
BINARY = """
{a} + {b}
{a} * {b}
{a} - {b} * 0.5
torch.where({b} > 0, {a}, {b})
torch.maximum({a}, {b})
{a} * {b}.sum()
torch.lerp({a}, {b}, 0.3)
{a} / ({b}.abs() + 1)
""".strip().splitlines()
WRITES = """
{t} = {a}.clone(); {t}.mul_({b})
{t} = {a} * 1; {t}[..., 0] = {b}[..., 1]
{t} = {a} + 0; {t}[..., 1:].add_({b}[..., :3])
{t} = {a}.sin(); {t}.relu_()
""".strip().splitlines()
DRAWS = """
{t} = {a} * torch.rand_like({b})
{t} = {a} * torch.empty_like({a}).bernoulli_(0.7)
{t} = torch.nn.functional.dropout({a}.clone(), 0.3, True, inplace=True)
{t} = {a} * {b}.detach().clone().uniform_(0.5, 1.5)
""".strip().splitlines()
PREDICATES = """
{a}.sum() > 0
({a}.mean() < {b}.mean())
{a}.flatten()[:1].sum() > 0.2
({a} > 0).any()
({a} > 0).all() | ({b}.sum() > 1)
""".strip().splitlines()


class Program:
    """Grows one program."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.lines: list[str] = []
        self.names = 0
        self.draws = False
        self.most_nested = 3

    def text(self) -> str:
        """`program(ops, x, y, w)` as Python source."""
        form = self.random.choice(
            ["plain"] * 6 + ["grad", "vmap", "jvp", "vjp", "checkpoint", "no_grad", "region"]
        )
        self.draws = form != "vmap" and self.random.random() < 0.3
        # Where a vjp draws, the graph breaks, and eager's vjp refuses these operators.
        self.most_nested = 0 if self.draws and form == "vjp" else 3
        self._say(0, "def program(ops, x, y, w):")
        self._say(1, "def inner(x, y, w):")
        result = self._body(2, ["x", "y"], self.random.randint(2, 4), 0)
        more = self.random.choice(["", ", x * 1", f", {result}.sum()"]) if form == "plain" else ""
        self._say(2, f"return {result}{more}")
        self._say(1, _FORMS[form])
        return "\n".join(self.lines) + "\n"

    def _say(self, depth: int, line: str) -> None:
        self.lines.append("    " * depth + line)

    def _name(self, letter: str) -> str:
        self.names += 1
        return f"{letter}{self.names}"

    def _two(self, scope: list[str]) -> dict[str, str]:
        return {"a": self.random.choice(scope[-3:]), "b": self.random.choice(scope)}

    def _body(self, depth: int, scope: list[str], count: int, nested: int) -> str:
        """Statements; the variable of the last."""
        scope = list(scope)
        for _ in range(count):
            name = self._name("v")
            chance = (0.5, 0.3, 0.15, 0.0)[nested] if nested < self.most_nested else 0.0
            if self.random.random() < chance:
                form = self.random.choice(
                    (self._cond, self._while, self._scan, self._map, self._associative)
                )
                form(depth, name, scope, nested + 1)
            else:
                forms = [UNARY, UNARY, BINARY, BINARY, WRITES, *[DRAWS] * self.draws]
                form = self.random.choice(forms)
                line = self.random.choice(form).format(t=name, **self._two(scope))
                self._say(depth, line if form in (WRITES, DRAWS) else f"{name} = {line}")
            scope.append(name)
        return scope[-1]

    def _function(
        self, depth: int, parameters: list[str], scope: list[str], nested: int, returned: str
    ) -> str:
        """Define a function that closes over `scope`, perhaps."""
        name = self._name("f")
        self._say(depth, f"def {name}({', '.join(parameters)}):")
        seen = [*(scope if self.random.random() < 0.5 else []), *parameters]
        seen = [each for each in seen if not each.startswith("i")]
        result = self._body(depth + 1, seen, self.random.randint(1, 3), nested)
        self._say(depth + 1, "return " + returned.format(r=result, o=self._two(seen)["a"]))
        return name

    def _cond(self, depth: int, name: str, scope: list[str], nested: int) -> None:
        operands = self.random.sample(scope, min(len(scope), self.random.randint(1, 2)))
        predicate = self.random.choice(PREDICATES).format(**self._two(scope))
        form = self.random.choice(["{r}", "{r} * 1", "({r}, {o})"])
        parameters = [self._name("p") for _ in operands]
        yes = self._function(depth, parameters, scope, nested, form)
        no = self._function(depth, parameters, scope, nested, form)
        given = ", ".join(operands)
        call = f"ops.cond({predicate}, {yes}, {no}, ({given},))"
        if "," in form:
            other = self._name("v")
            self._say(depth, f"{name}, {other} = {call}")
            self._say(depth, f"{name} = {name} + {other}")
        else:
            self._say(depth, f"{name} = {call}")

    def _while(self, depth: int, name: str, scope: list[str], nested: int) -> None:
        start = self.random.choice(scope)
        index, test = self._name("i"), self._name("f")
        steps, bound = self.random.randint(0, 4), self.random.choice([1.0, 5.0, 50.0])
        parameter = self._name("p")
        self._say(depth, f"def {test}({index}, {parameter}):")
        closed = f" + {self.random.choice(scope)}.sum()" if self.random.random() < 0.3 else ""
        bounded = f"({parameter}.sum() < {bound}{closed})"
        self._say(depth + 1, f"return ({index} < {steps}) & {bounded}")
        returned = self.random.choice([f"({index} + 1, {{r}})", f"({index} + 1, {{r}} * 0.9)"])
        body = self._function(depth, [index, parameter], scope, nested, returned)
        zero = "torch.zeros((), dtype=torch.int64)"
        self._say(depth, f"{name}_, {name} = ops.while_loop({test}, {body}, ({zero}, {start}))")
        if self.random.random() < 0.4:
            self._say(depth, f"{name} = {name} * {name}_")

    def _scan(self, depth: int, name: str, scope: list[str], nested: int) -> None:
        carry, xs = self.random.choice(scope), self.random.choice(scope)
        rows = self._rows(depth, name, xs)
        first = "{c}.sum(0)" if self.random.random() < 0.5 else "{c}.reshape(-1, 4).mean(0)"
        if xs[0] in "rp" or nested > 1:
            first = "{c}.reshape(-1, 4).sum(0)"
        returned = self.random.choice(["({r}, {o})", "({r} * 0.5, {r})", "({r}, {o} + 1)"])
        inner = self._function(depth, [self._name("r"), self._name("r")], [], nested, returned)
        reverse = self.random.choice(["", ", reverse=True"])
        first = first.format(c=carry)
        self._say(depth, f"{name}_, {name} = ops.scan({inner}, {first}, {rows}{reverse})")
        self._say(depth, f"{name} = {name}.reshape({xs}.shape) + {name}_")

    def _map(self, depth: int, name: str, scope: list[str], nested: int) -> None:
        xs = self.random.choice(scope)
        rows = self._rows(depth, name, xs)
        inner = self._function(depth, [self._name("r")], [], nested, "{r}")
        self._say(depth, f"{name} = ops.map({inner}, {rows}).reshape({xs}.shape)")

    def _associative(self, depth: int, name: str, scope: list[str], nested: int) -> None:
        xs = self.random.choice(scope)
        rows = self._rows(depth, name, xs)
        combine = self.random.choice(
            ["lambda a, b: a + b", "lambda a, b: torch.maximum(a, b)", "lambda a, b: a * b * 0.5"]
        )
        reverse = self.random.choice(["", ", reverse=True"])
        call = f"ops.associative_scan({combine}, {rows}, 0{reverse})"
        self._say(depth, f"{name} = {call}.reshape({xs}.shape)")

    def _rows(self, depth: int, name: str, xs: str) -> str:
        self._say(depth, f"{name}r = {xs}.reshape(-1, 4)")
        return self.random.choice([f"{name}r", f"{name}r.flip(0)", f"{name}r.sin()"])


_FORMS = {
    "plain": "return inner(x, y, w)",
    "grad": "return torch.func.grad(lambda x: inner(x, y, w).sin().sum())(x)",
    "vmap": "return torch.func.vmap(lambda a, b: inner(a, b, w))("
    "torch.stack([x, y, -x]), torch.stack([y, x * 2, y]))",
    "jvp": "return torch.func.jvp(lambda x: inner(x, y, w), (x,), (y,))",
    "vjp": "r, f = torch.func.vjp(lambda x, w: inner(x, y, w), x, w); return r, *f(r.detach())",
    "checkpoint": "return torch.utils.checkpoint.checkpoint("
    "inner, x, y, w, use_reentrant=False).cos()",
    "no_grad": "with torch.no_grad(): y = inner(x, y, w)\n    return inner(y, x, w)",
    "region": "region = torch.compiler.nested_compile_region(inner); "
    "return region(region(x, y, w), x, w)",
}


def program_of(seed: int) -> str:
    """The text of the program of this seed."""
    return Program(seed).text()
