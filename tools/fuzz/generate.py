"""Random programs, grown statement by statement: each is tried eagerly on real inputs, and kept if
it runs there.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.nn.functional as F

from tools.fuzz.templates import EXACT, IDENTITIES, IN_PLACE, INPUTS, OVERFLOWS, ROUNDED, SHAPES

if TYPE_CHECKING:
    from collections.abc import Sequence

_LARGEST = 4000
_HUGE = 1e6


@dataclass(frozen=True)
class Source:
    """A random program as text. `inputs[n]` is an expression for argument xn; `outputs` are
    variables, and `losses` those of them that the backward begins at.
    """

    inputs: tuple[str, ...]
    statements: tuple[str, ...]
    outputs: tuple[str, ...]
    losses: tuple[str, ...]

    def loss_numbers(self) -> list[int]:
        """The numbers of the outputs that the backward begins at: all, if none is a loss."""
        found = [number for number, name in enumerate(self.outputs) if name in self.losses]
        return found or list(range(len(self.outputs)))

    def text(self) -> str:
        """The program as Python source that runs on its own."""
        names = ", ".join(f"x{n}" for n in range(len(self.inputs)))
        body = "\n".join(
            f"    {line}" for statement in self.statements for line in statement.splitlines()
        )
        made = "".join(f"    {text},\n" for text in self.inputs)
        returned = ", ".join(self.outputs) + ("," if len(self.outputs) == 1 else "")
        return (
            f"def program({names}):\n"
            f"{body}\n"
            f"    return ({returned})  # backward of outputs {self.loss_numbers()}\n"
            "\n"
            "\n"
            "def make():\n"
            "    return (\n"
            f"{made})\n"
        ).replace("\n)\n", "\n    )\n")

    def load(self) -> dict[str, Any]:
        """`program` and `make` of the text."""
        scope: dict[str, Any] = {"torch": torch, "F": F}
        exec(compile(self.text(), "<fuzz>", "exec"), scope)
        return scope


SourceT = TypeVar("SourceT", bound=Source)


class Generator:
    """Grows one program."""

    in_place: Sequence[str] = IN_PLACE
    """Templates of statements that write to {v}."""
    constants = "dck"
    """The first letters of placeholders that are no variables."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.scope: dict[str, Any] = {"torch": torch, "F": F}
        self.exact: set[str] = set()
        self.fresh: set[str] = set()
        self.variables: list[str] = []

    def grow(self, statements: int) -> Source:
        """A program of about that many statements."""
        torch.manual_seed(self.random.randrange(1 << 30))
        inputs = []
        for number in range(self.random.randint(1, 3)):
            shape = self.random.choice(SHAPES)
            text = self.random.choice(INPUTS).replace("({s},)", f"({shape},)" if shape else "()")
            text = (
                text.replace("{s}", shape or "()").replace("(), 2)", "2)").replace("(2, ())", "(2)")
            )
            try:
                self.scope[f"x{number}"] = eval(text, self.scope)
            except (RuntimeError, TypeError, IndexError):
                text = "torch.randn(3, 5)"
                self.scope[f"x{number}"] = eval(text, self.scope)
            inputs.append(text)
            self.variables.append(f"x{number}")
            self.exact.add(f"x{number}")
        kept: list[str] = []
        for _ in range(20 * statements):
            if len(kept) == statements:
                break
            statement = self._statement(f"v{len(kept)}")
            if statement is not None:
                kept.append(statement)
        made = [name for name in self.variables if name.startswith("v")]
        count = min(len(self.variables), self.random.randint(1, 4))
        outputs = [*made[-1:], *self.random.sample(self.variables, count - 1)]
        if outputs and self.random.random() < 0.4:
            outputs += self._sharing(outputs[0])[:2]
        outputs = list(dict.fromkeys(outputs)) or ["x0"]
        losses = outputs
        if self.random.random() < 0.5:
            losses = self.random.sample(outputs, self.random.randint(1, len(outputs)))
            overflow = self._fill(self.random.choice(OVERFLOWS))
            if overflow is not None:
                name = f"v{len(kept)}"
                kept.append(f"{name} = {overflow[0]}")
                outputs.append(name)
        return Source(tuple(inputs), tuple(kept), tuple(outputs), tuple(losses))

    def _sharing(self, name: str) -> list[str]:
        """Other variables that share a variable's memory, in random order."""

        def memory(variable: str) -> int:
            return self.scope[variable].untyped_storage().data_ptr()

        sharing = [v for v in self.variables if v != name and memory(v) == memory(name)]
        return self.random.sample(sharing, len(sharing))

    def _statement(self, target: str) -> str | None:
        """A statement that ran, or None."""
        choice = self.random.random()
        if choice < 0.12 and self.fresh:
            return self._write()
        exact = choice < 0.55
        template = self.random.choice(IDENTITIES if choice < 0.22 else EXACT if exact else ROUNDED)
        filled = self._fill(template)
        if filled is None:
            return None
        expression, used = filled
        form = self.random.random()
        if form < 0.06:
            text = (
                f"{target} = {expression}\n"
                f"for step in range({self.random.randint(1, 3)}):\n"
                f"    {target} = {target} * 0.5 + step"
            )
            exact = False
        elif form < 0.1:
            text = (
                f"if {used[0]}.shape[-1] > {self.random.randint(0, 6)}:\n    {target} = "
                f"{expression}\nelse:\n    {target} = {used[0]}"
                if used
                else f"{target} = {expression}"
            )
        else:
            text = f"{target} = {expression}"
        if not self._run(text, target):
            return None
        self.variables.append(target)
        if exact and all(name in self.exact for name in used):
            self.exact.add(target)
        value = self.scope[target]
        if all(value is not self.scope[name] for name in self.variables[:-1]):
            self.fresh.add(target)
        return text

    def _write(self) -> str | None:
        name = self.random.choice(sorted(self.fresh))
        filled = self._fill(self.random.choice(self.in_place).replace("{v}", name))
        if filled is None:
            return None
        text, _ = filled
        before = {variable: self.scope[variable] for variable in self.variables}
        try:
            exec(text, self.scope)
        except Exception:
            return None
        if self.scope[name] is not before[name] or not self._sane(self.scope[name]):
            return None
        self.exact.clear()
        self.exact.update(variable for variable in self.variables if variable.startswith("x"))
        return text

    def _run(self, text: str, target: str) -> bool:
        scope = dict(self.scope)
        try:
            exec(text, scope)
        except Exception:
            return False
        if not self._sane(scope[target]):
            return False
        self.scope[target] = scope[target]
        return True

    def _sane(self, value: Any) -> bool:
        if not isinstance(value, torch.Tensor) or value.numel() > _LARGEST:
            return False
        return not (
            (value.is_floating_point() or value.is_complex())
            and value.numel()
            and bool((value.detach().abs() > _HUGE).any())
        )

    def _fill(self, template: str) -> tuple[str, list[str]] | None:
        """The template with its placeholders replaced, and the variables used; None if there is no
        variable of a kind.
        """
        names: dict[str, str] = {}
        for key in dict.fromkeys(re.findall(r"\{(\w+)\}", template)):
            if key[0] in self.constants:
                continue
            candidates = [name for name in self.variables if self._is(key[0], name)]
            if not candidates:
                return None
            names[key] = self._choose(candidates)
        used = list(dict.fromkeys(names.values()))
        names |= self._constants(self.scope[used[0]].ndim if used else 1)
        return re.sub(r"\{(\w+)\}", lambda match: names[match.group(1)], template), used

    def _choose(self, candidates: list[str]) -> str:
        """One of these variables."""
        return self.random.choice(candidates)

    def _constants(self, ndim: int) -> dict[str, str]:
        """The texts of `constants`; {d} is one of that many dims."""
        return {
            "d": str(self.random.randrange(-ndim, ndim)) if ndim else "0",
            "c": str(self.random.choice([0.5, -1.25, 2.0, 0.1])),
            "k": str(self.random.randint(0, 3)),
        }

    def _is(self, kind: str, name: str) -> bool:
        value = self.scope[name]
        if kind == "f":
            return value.is_floating_point()
        if kind == "z":
            return value.is_complex()
        if kind == "i":
            return not (
                value.is_floating_point() or value.is_complex() or value.dtype is torch.bool
            )
        if kind == "b":
            return value.dtype is torch.bool
        real = value.dtype is not torch.bool and not value.is_complex()
        if kind == "n":
            return real
        if kind == "e":
            return name in self.exact and real
        return True


def generate(seed: int, statements: int = 8) -> Source:
    """The program of this seed."""
    return Generator(seed).grow(statements)


def without(source: SourceT, statement: int) -> SourceT:
    """The program less one statement."""
    return replace(
        source, statements=source.statements[:statement] + source.statements[statement + 1 :]
    )
