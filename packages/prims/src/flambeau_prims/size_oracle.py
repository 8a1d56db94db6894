"""Questions about unbacked numbers that their ranges leave open, answered as they are on the call
being traced.

    n = x.sum().item()          n is u0, of which nothing is known
    if n > 3:                   the oracle says that u0 is 5 now: yes. `u0 > 3` is assumed, and the
                                program checks it as it runs

A SizeEnv has an oracle only while somebody traces who can tell values and deal with checks that
fail (`SizeEnv.oracle`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flambeau_prims import sizes
from flambeau_prims.size_floats import OPPOSITE, PLAIN, FloatExpr, float_of_bits, is_float_symbol
from flambeau_prims.size_ranges import SizeGuard
from flambeau_prims.sizes import Expr, SizeEnv
from flambeau_prims.unsupported import DataDependentSize

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class Oracle:
    """Tells what unbacked numbers of `env` are on the call being traced.

    `tell(names)` gives the values of unbacked symbols by name, floats as floats; None where the
    trace may not rely on them.
    """

    def __init__(
        self, env: SizeEnv, tell: Callable[[set[str]], Mapping[str, int | float] | None]
    ) -> None:
        self._env = env
        self._tell = tell
        self._floats: dict[tuple[Any, ...], bool] = {}
        self.answered: list[SizeGuard] = []
        """The relations in `env.assumed` that hold on the traced call, and need not on another."""

    def value(self, number: Any, question: str) -> Any:
        """The value of an unbacked number, assumed from here on, or DataDependentSize."""
        result = self._now(number, question)
        if isinstance(number, Expr):
            self._assume("==", number, result, holds=True)
        elif result != result or not self._float_relation("==", number, result, question):
            raise DataDependentSize(f"{question}, which is not a number")
        return result

    def holds(self, op: str, a: Any, b: Any, question: str) -> bool:
        """Whether `a op b`, which is assumed from now on."""
        if isinstance(a, (float, FloatExpr)) or isinstance(b, (float, FloatExpr)):
            return self._float_relation(op, a, b, question)
        answer = PLAIN[op](self._now(a, question), self._now(b, question))
        self._assume(op, a, b, holds=answer)
        return answer

    def is_zero(self, difference: Expr) -> bool:
        """Whether a difference that must be zero for a valid program is zero; yes if unknown."""
        try:
            return bool(self._now(difference, "") == 0)
        except DataDependentSize:
            return True

    def _float_relation(self, op: str, a: Any, b: Any, question: str) -> bool:
        key = (op, *((type(side), side) for side in (a, b)))
        answer = self._floats.get(key)
        if answer is None:
            answer = PLAIN[op](self._now(a, question), self._now(b, question))
            self._floats[key] = answer
            guard = SizeGuard(op, a, b, holds=answer, where=self._env.place())
            self._env.assumed.append(guard)
            self.answered.append(guard)
        return answer

    def _assume(self, op: str, a: Any, b: Any, *, holds: bool) -> None:
        before = len(self._env.assumed)
        sizes.expect(op if holds else OPPOSITE[op], a, b)
        self.answered += self._env.assumed[before:]

    def _now(self, number: Any, question: str) -> Any:
        """The value of a number on the call being traced."""
        if not isinstance(number, (Expr, FloatExpr)):
            return number
        env = self._env
        names = number.symbols()
        unbacked = {name for name in names if env.symbols[name].index in env.unbacked_atoms}
        answers = self._tell(unbacked)
        if answers is None:
            raise DataDependentSize(question)
        values: dict[str, Any] = dict(answers)
        for name in names - unbacked:
            hint = env.symbols[name].hint
            values[name] = float_of_bits(hint) if is_float_symbol(name) else hint
        return env.evaluate(number, values) if isinstance(number, Expr) else number.evaluate(values)
