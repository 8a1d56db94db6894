"""Delta debugging of a graph: what can go while it fails in the same way, goes.

1. outputs, each alone, else every half of them (ddmin; Zeller, Hildebrandt 2002)
2. statements, in chunks, half of them at first and single ones at last; what a later one reads
   becomes an input
3. sizes: each number of the inputs' shapes becomes 1, 2, 3 or a half, wherever it stands
4. inputs that require no gradient, statement by statement again
"""

from __future__ import annotations

import ast
import json
from dataclasses import replace
from typing import TYPE_CHECKING

from flambeau.minify.script import Script, Statement

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from flambeau.minify.trials import Trials

_DESCRIBE = """

if __name__ == "__main__":
    import json

    from flambeau.runnable_graph import NotRunnable, value_text

    texts = {}
    module, inputs = CapturedGraph(), example_inputs()
    values = dict(zip(%(params)r, inputs)) | {"self": module}
    space = dict(globals())
    for target, text in %(statements)r:
        value = eval(text, space, values)
        if target.isidentifier():
            values[target] = value
            try:
                texts[target] = value_text(value)
            except NotRunnable:
                pass
    print("values: " + json.dumps(texts))
"""
SMALL = (1, 2, 3)
GRADIENT = ", requires_grad=True"


class Reducer:
    """Cuts a script while `trials` fail as it does at first."""

    def __init__(self, script: Script, trials: Trials, tell: Callable[[str], None]) -> None:
        self.trials = trials
        self.tell = tell
        self.failure = trials.failure(script)
        self.script = script

    def run(self) -> Script:
        """The smallest script that was found."""
        if not self.failure:
            return self.script
        before = ""
        while before != str(self.script):
            before = str(self.script)
            self._try(self.script.pruned())
            self._cut_outputs()
            self._cut_statements()
            self._shrink_sizes()
            self._drop_gradients()
            self.tell(_size(self.script))
        return self.script

    def _try(self, script: Script) -> bool:
        """Whether a script fails in the same way; it is kept if it does."""
        if str(script) == str(self.script) or self.trials.failure(script) != self.failure:
            return False
        self.script = script
        return True

    def _cut_outputs(self) -> None:
        for name in self.script.outputs:
            if len(self.script.outputs) > 1 and self._try(
                replace(self.script, outputs=(name,)).pruned()
            ):
                return
        for keep in _without_chunks(len(self.script.outputs), lambda: len(self.script.outputs)):
            outputs = tuple(name for at, name in enumerate(self.script.outputs) if keep(at))
            if outputs:
                self._try(replace(self.script, outputs=outputs).pruned())

    def _cut_statements(self) -> None:
        texts = self._values()
        for keep in _without_chunks(
            len(self.script.statements), lambda: len(self.script.statements)
        ):
            kept = [s for at, s in enumerate(self.script.statements) if keep(at)]
            self._try_statements(kept, texts)
        # The end of a graph: an earlier value is the output.
        for at in range(len(self.script.statements)):
            if at >= len(self.script.statements):
                return
            statement = self.script.statements[at]
            if statement.target in texts and self._try(
                replace(
                    self.script,
                    statements=self.script.statements[: at + 1],
                    outputs=(statement.target,),
                ).pruned()
            ):
                return

    def _try_statements(self, kept: list[Statement], texts: dict[str, str]) -> None:
        """These statements only: what they read and none makes becomes an input."""
        script = self.script
        made = {statement.target for statement in kept}
        gone = {statement.target for statement in script.statements} - made - {""}
        read = set(script.outputs).union(*(statement.reads for statement in kept))
        outputs = tuple(name for name in script.outputs if name not in gone)
        if not outputs:
            outputs = tuple(s.target for s in kept if s.target in texts)[-1:]
        inner = {name for statement in kept for name in statement.reads} & gone
        if not outputs or not inner <= texts.keys() or not read:
            return
        params = script.params + tuple((name, texts[name]) for name in sorted(inner))
        candidate = replace(script, params=params, statements=tuple(kept), outputs=outputs)
        self._try(candidate.pruned())

    def _values(self) -> dict[str, str]:
        """The text of a random value like each that a statement makes, where there is one."""
        main = _DESCRIBE % {
            "params": [name for name, _ in self.script.params],
            "statements": [(s.target, s.text) for s in self.script.statements],
        }
        lines = self.trials.output(self.script, main).splitlines()
        found = [line for line in lines if line.startswith("values: ")]
        texts: dict[str, str] = json.loads(found[-1].removeprefix("values: ")) if found else {}
        return texts

    def _shrink_sizes(self) -> None:
        sizes = {
            node.value
            for _, text in self.script.params
            for shape in _shapes(text)
            for node in shape.elts
            if isinstance(node, ast.Constant) and isinstance(node.value, int)
        }
        for size in sorted(sizes, reverse=True):
            for small in (*SMALL, size // 2):
                if 0 < small < size and self._try(_resized(self.script, size, small)):
                    break

    def _drop_gradients(self) -> None:
        texts = [(name, text.replace(GRADIENT, "")) for name, text in self.script.params]
        if self._try(replace(self.script, params=tuple(texts))):
            return
        for at, param in enumerate(texts):
            params = list(self.script.params)
            params[at] = param
            self._try(replace(self.script, params=tuple(params)))


def _without_chunks(count: int, left: Callable[[], int]) -> Iterator[Callable[[int], bool]]:
    """Which of `left()` items stay, for each chunk that may go: one half first, then smaller ones,
    from the end. Items go while this runs.
    """
    size = max(1, count // 2)
    while True:
        end = left()
        while end > 0:
            start = max(0, end - size)
            yield lambda at, start=start, end=end: not start <= at < end  # type: ignore[misc]
            end = min(start, left())
        if size == 1:
            return
        size //= 2


def _shapes(text: str) -> list[ast.Tuple]:
    """The shape of a `tensor(shape, stride, ...)`."""
    node = ast.parse(text, mode="eval").body
    if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Tuple):
        return [node.args[0]]
    return []


def _resized(script: Script, size: int, small: int) -> Script:
    """A script with one size instead of another in shapes and statements; dense inputs stay so."""
    params = tuple((name, _resized_value(text, size, small)) for name, text in script.params)
    statements = tuple(
        replace(statement, text=_renumbered(statement.text, size, small))
        for statement in script.statements
    )
    return replace(script, params=params, statements=statements)


def _resized_value(text: str, size: int, small: int) -> str:
    node = ast.parse(text, mode="eval").body
    if not isinstance(node, ast.Call) or not _shapes(text):
        return _renumbered(text, size, small)
    shape: tuple[int, ...] = ast.literal_eval(node.args[0])
    stride: tuple[int, ...] = ast.literal_eval(node.args[1])
    resized = tuple(small if n == size else n for n in shape)
    if resized == shape:
        return text
    order = sorted(range(len(shape)), key=lambda dim: (-stride[dim], -shape[dim]))
    steps, step = [0] * len(shape), 1
    for dim in reversed(order):
        steps[dim] = 0 if stride[dim] == 0 else step
        step *= resized[dim] if stride[dim] else 1
    node.args[:2] = [ast.parse(repr(dims), mode="eval").body for dims in (resized, tuple(steps))]
    return ast.unparse(node)


def _renumbered(text: str, size: int, small: int) -> str:
    tree = ast.parse(text, mode="eval")
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and type(node.value) is int and node.value == size:
            node.value = small
    return ast.unparse(tree)


def _size(script: Script) -> str:
    return f"{len(script.statements)} calls, {len(script.params)} inputs"
