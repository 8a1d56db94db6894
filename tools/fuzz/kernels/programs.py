"""Random chains of operators: mostly one class of them, over inputs of random sizes, numbers and
layouts.
"""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from tools.fuzz.generate import Generator, Source
from tools.fuzz.kernels.numbers import FLOATS, INTEGERS
from tools.fuzz.kernels.operators import CLASSES, IN_PLACE
from tools.fuzz.kernels.placing import LAYOUTS, Input, placed
from tools.fuzz.kernels.sizes import MOST, draw_shape, draw_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tools.fuzz.kernels.operators import OperatorClass

FLOATING = (torch.float32, torch.float32, torch.float32, torch.bfloat16, torch.float16)
DTYPES = (
    *FLOATING, *FLOATING, torch.float64, torch.int32, torch.int64, torch.int8, torch.uint8,
    torch.int16, torch.bool, torch.complex64,
)  # fmt: skip

MODES: dict[str, dict[str, Any]] = {
    "default": {},
    "dynamic": {"dynamic": True},
    "reduce-overhead": {"mode": "reduce-overhead"},
    "max-autotune": {"mode": "max-autotune-no-cudagraphs"},
}
"""Arguments of `flambeau.compile`."""

NUMBERS = (
    "0", "1", "-1", "3", "0.5", "-2.5", "7.25", "True", "300", "-129", "70000", "3_000_000_000",
    "2**62", "1e-46", "1e39", "6e4", "float('nan')", "float('inf')", "-0.0",
)  # fmt: skip
"""Python numbers, many of them outside of some dtype."""

_DIVISION = re.compile(r" // \w+$| % \D| % 0|fmod|remainder|rounding_mode")
"""What divides integers by zero: an error on a CPU, any number on a GPU."""

_CHOICE = re.compile(r"\{((?:[^{}]|\{\w+\})*\|(?:[^{}]|\{\w+\})*)\}")
_INPUT = re.compile(r"<<(.*?); (.*?)(?:; (\w+)(.*?))?>>")


@dataclass(frozen=True)
class Program(Source):
    """A chain, its class of operators and the mode that it is compiled in."""

    kind: str = ""
    mode: str = "default"

    def text(self) -> str:
        """The program as Python source that runs on its own."""
        return (
            f"# {self.kind}; compiled with {MODES[self.mode]}\n"
            "import torch\n"
            "import torch.nn.functional as F\n"
            "\n"
            "from tools.fuzz.kernels.placing import placed\n"
            "\n"
            "\n"
        ) + super().text()

    def load(self) -> dict[str, Any]:
        """`program` and `make` of the text; `reference`: the program in double precision."""
        scope: dict[str, Any] = {}
        exec(compile(self.text(), "<fuzz>", "exec"), scope)
        wide: dict[str, Any] = {}
        text = re.sub(r"torch\.(b?float16|float32)\b", "torch.float64", self.text())
        exec(compile(text, "<fuzz in float64>", "exec"), wide)
        return scope | {"reference": wide["program"]}


class Chain(Generator):
    """Grows one chain; values may be of any magnitude."""

    in_place = IN_PLACE
    constants = "dcksw"

    def __init__(self, seed: int, device: str = "cpu") -> None:
        super().__init__(seed)
        self.device = device
        self.most = MOST[device]
        self.scope["placed"] = placed
        self.inputs: list[Input] = []
        self.differentiates = self.random.random() < 0.5

    def grow_chain(self, kind: str | None = None) -> Program:
        """A chain of 1 to 6 statements, of a class of `CLASSES`, and its mode."""
        torch.manual_seed(self.random.randrange(1 << 30))
        kind = kind or self.random.choice(list(CLASSES))
        self._begin(CLASSES[kind])
        wanted = self.random.randint(1, 6)
        kept: list[str] = []
        for attempt in range(60):
            if len(kept) == wanted:
                break
            own = not kept and attempt < 40
            chosen = kind if own else self.random.choice(list(CLASSES))
            statement = self._chained(CLASSES[chosen], f"v{len(kept)}")
            if statement is not None:
                kept.append(statement)
        outputs = self._outputs()
        # Of a product's kernels, which are many on a GPU, only this mode runs more than one.
        tuned = ["max-autotune"] * 8 * (kind == "products" and self.device != "cpu")
        mode = self.random.choice(["default"] * 5 + list(MODES) + tuned)
        inputs = tuple(map(str, self.inputs))
        return Program(inputs, tuple(kept), outputs, outputs, kind, mode)

    def _begin(self, operators: OperatorClass) -> None:
        """Draw the first inputs: one, or two that broadcast."""
        shape = draw_shape(self.random, self.random.choice(operators.ndims), self.most)
        floating = not operators.exact or self.random.random() < 0.6
        dtype = self.random.choice(FLOATING if floating else DTYPES)
        self._add_input(shape, dtype)
        if self.random.random() < 0.5:
            ones = [1 if self.random.random() < 0.2 else size for size in shape]
            other = dtype if self.random.random() < 0.6 else self.random.choice(DTYPES)
            self._add_input(tuple(ones[self.random.randint(0, len(ones)) // 3 :]), other)

    def _add_input(self, shape: tuple[int, ...], dtype: torch.dtype, values: str = "") -> str:
        floating = dtype.is_floating_point
        if not values:
            names = list(FLOATS) if floating or dtype.is_complex else list(INTEGERS)
            values = self.random.choice(["normal"] * len(names) + names)
        if dtype.is_complex:
            values = "normal"
        layout = self.random.choice(["contiguous"] * len(LAYOUTS) + list(LAYOUTS))
        grad = floating and self.differentiates and self.random.random() < 0.8
        name = f"x{len(self.inputs)}"
        made = Input(shape, dtype, values, layout, self.device, grad)
        self.scope[name] = eval(str(made), self.scope)
        self.inputs.append(made)
        self.variables.append(name)
        self.exact.add(name)
        # Indices that a program wrote to might lie outside.
        if not grad and " " not in values:
            self.fresh.add(name)
        return name

    def _chained(self, operators: OperatorClass, target: str) -> str | None:
        """A statement that ran, or None; inputs that it would have added are gone."""
        count = len(self.inputs)
        if self.random.random() < 0.12 and self.fresh:
            text = self._write()
        else:
            text = self._assigned(operators, target)
        if text is None:
            for number in range(count, len(self.inputs)):
                self.variables.remove(f"x{number}")
                self.fresh.discard(f"x{number}")
            del self.inputs[count:]
        return text

    def _assigned(self, operators: OperatorClass, target: str) -> str | None:
        templates = operators.exact + operators.rounded
        template = self.random.choice(templates)
        filled = self._fill(template)
        if filled is None:
            return None
        expression, used = filled
        text = f"{target} = {expression}"
        if not self._run(text, target):
            return None
        result = self.scope[target]
        whole = not (result.is_floating_point() or result.is_complex())
        if self.device != "cpu" and whole and _DIVISION.search(expression):
            return None
        self.variables.append(target)
        if template in operators.exact and all(name in self.exact for name in used):
            self.exact.add(target)
        if all(self.scope[target] is not self.scope[name] for name in self.variables[:-1]):
            self.fresh.add(target)
        return text

    def _write(self) -> str | None:
        memory = {name: self._memory(name) for name in self.variables}
        exact = set(self.exact)
        text = super()._write()
        if text is not None:
            written = memory[self._written(text)]
            self.exact = {name for name in exact if memory.get(name) != written}
        return text

    def _memory(self, name: str) -> int:
        return self.scope[name].untyped_storage().data_ptr()

    @staticmethod
    def _written(text: str) -> str:
        found = re.search(r"out=(\w+)", text) or re.match(r"(\w+)", text)
        assert found is not None
        return found.group(1)

    def _is(self, kind: str, name: str) -> bool:
        dtype = self.scope[name].dtype
        if dtype.is_floating_point and dtype.itemsize == 1 and kind != "a":
            return False
        return super()._is(kind, name)

    def _sane(self, value: Any) -> bool:
        return isinstance(value, torch.Tensor) and value.numel() <= 4 * self.most

    def _fill(self, template: str) -> tuple[str, list[str]] | None:
        while True:
            chosen = _CHOICE.sub(lambda m: self.random.choice(m.group(1).split("|")), template)
            if chosen == template:
                break
            template = chosen
        filled = super()._fill(re.sub(r"\{s\}", lambda _: str(draw_size(self.random)), template))
        if filled is None:
            return None
        text, used = filled
        try:
            return _INPUT.sub(self._new_input, text), used
        except Exception:
            return None

    def _choose(self, candidates: list[str]) -> str:
        made = [name for name in candidates if name.startswith("v")]
        recent = made[-2:] if made and self.random.random() < 0.7 else candidates
        return self.random.choice(recent)

    def _new_input(self, match: re.Match[str]) -> str:
        """The name of an input that a template asks for."""
        shape, dtype, values, bound = match.groups()
        if bound:
            values = f"{values} {eval(bound, self.scope)}"
        sizes = tuple(eval(shape, self.scope))
        if math.prod(sizes) > 4 * self.most:
            raise ValueError("too large")
        return self._add_input(sizes, eval(dtype, self.scope), values or "normal")

    def _constants(self, ndim: int) -> dict[str, str]:
        other = str(self.random.randrange(-ndim, ndim)) if ndim else "0"
        number = self.random.choice(NUMBERS)
        return super()._constants(ndim) | {"d2": other, "w": number}

    def _outputs(self) -> tuple[str, ...]:
        """The last result, some others, and what shares memory with it."""
        made = [name for name in self.variables if name.startswith("v")]
        count = min(len(self.variables), self.random.randint(0, 2))
        names = made[-1:] + self.random.sample(self.variables, count)
        if made and self.random.random() < 0.3:
            names += self._sharing(made[-1])[:1]
        return tuple(dict.fromkeys(names)) or ("x0",)


def _without_input(program: Program, dropped: int) -> Program:
    """The program less an unused input; those behind it have other numbers."""

    def renamed(texts: tuple[str, ...]) -> tuple[str, ...]:
        def rename(match: re.Match[str]) -> str:
            number = int(match.group(1))
            return f"x{number - (number > dropped)}"

        return tuple(re.sub(r"\bx(\d+)\b", rename, text) for text in texts)

    return replace(
        program,
        inputs=program.inputs[:dropped] + program.inputs[dropped + 1 :],
        statements=renamed(program.statements),
        outputs=renamed(program.outputs),
        losses=renamed(program.losses),
    )


def generate(seed: int, device: str = "cpu") -> Program:
    """The chain of this seed, the first that has a statement."""
    programs = (Chain(seed + (again << 32), device).grow_chain() for again in itertools.count())
    return next(program for program in programs if program.statements)


def on_cpu(program: Program) -> Program:
    """The same program with its inputs on the CPU."""
    inputs = (str(replace(Input.read(text), device="cpu")) for text in program.inputs)
    return replace(program, inputs=tuple(inputs))


def simpler(program: Program) -> Iterator[Program]:
    """Programs with one plainer input, without an input, and in the default mode."""
    if program.mode != "default":
        yield replace(program, mode="default")
    used = set(re.findall(r"\bx(\d+)\b", " ".join(program.statements + program.outputs)))
    for number in range(len(program.inputs)):
        if str(number) not in used:
            yield _without_input(program, number)
    for number, text in enumerate(program.inputs):
        for plain in Input.read(text).simpler():
            inputs = (*program.inputs[:number], str(plain), *program.inputs[number + 1 :])
            yield replace(program, inputs=inputs)
