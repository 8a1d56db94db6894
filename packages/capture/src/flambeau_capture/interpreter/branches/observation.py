"""Values that the graph so far computes, on the call being captured.

Each call of the graph runs once, and changes nothing of the program's. Inputs that it writes to are
replaced by copies; generators that it draws from are restored, and so is torch's state.

A call whose check fails runs again, so what the graph does before a check must be restorable:
tensors, generators and torch's own state (`entries/eager_replay.py`). Nothing is assumed of data
behind operators and functions of the program with other side effects.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.entries.state_snapshot import autocast_nesting, draws, generators_before
from flambeau_capture.graphs.autograd_calls import leaving_inference_modes
from flambeau_capture.graphs.graph_module import sizes_in, values_in
from flambeau_capture.record import GraphValue
from flambeau_capture.torch_state import Switches, nesting_settings
from flambeau_capture.trusted import is_trusted
from flambeau_prims.kernel_launches import NAMESPACE
from flambeau_prims.size_floats import FloatExpr, evaluate_number, float_of_bits, is_float_symbol
from flambeau_prims.sizes import Expr

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flambeau_capture.entries.state_snapshot import Saved
    from flambeau_capture.interpreter.torch_calls.tape import Tape
    from flambeau_capture.record import Call

MOST_KEPT = 1 << 28
"""Bytes of results that are kept from one observation to the next."""
_CHANGES_HISTORY = frozenset({"requires_grad_", "detach_"})


@dataclass(frozen=True, slots=True)
class Failure:
    """What the graph so far raises on the captured call: the program's error, or no memory."""

    text: str


class Observation:
    """The run of one tape's calls. Results are kept, so the next observation runs new calls only.

    Results beyond `MOST_KEPT` bytes are dropped. If a later call needs one of them, or if a call
    raises, the next observation starts again from the inputs.
    """

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._restart()

    def _restart(self) -> None:
        self._calls: list[Call] = []
        """The calls that have run."""
        self._values: dict[GraphValue, Any] = {}
        self._inputs: set[GraphValue] = set()
        self._originals: set[int | None] = set()
        self._copies: dict[int, torch.UntypedStorage] = {}
        """Copies of the inputs' memory that calls write to, by the original's address."""
        self._drawing: list[Call] = []
        self._generators: Saved | None = None
        self._switches: Switches | None = None
        """The state of torch after the last call that has run."""
        self._nesting = 0
        self._held = 0
        self._limit = MOST_KEPT

    @property
    def pending(self) -> int:
        """How many calls of the tape have not run yet."""
        return len(self._tape.calls) - len(self._calls)

    def observe(self, wanted: Sequence[GraphValue]) -> tuple[Any, ...] | Failure | None:
        """What these values of the graph are; None if the observation would change something.

        Called in the state of torch that the call began in, outside of the tracer, and with no
        inference mode left open by an earlier observation.
        """
        self._add_inputs()
        calls = self._tape.calls[len(self._calls) :]
        made = {value for call in calls for value in values_in(call.result)}
        if self._calls and not self._read_by(calls, wanted) - made <= self._values.keys():
            self._restart()
            return self.observe(wanted)
        if any(call.target in _CHANGES_HISTORY and call.args[0] in self._inputs for call in calls):
            return None
        self._drawing += filter(draws, calls)
        generators = generators_before(self._drawing, self._tape.inputs)
        switches, nesting = Switches(), autocast_nesting()
        self._resume()
        try:
            with leaving_inference_modes():
                found = self._run_all(calls, wanted)
        finally:
            self._nesting = autocast_nesting() - nesting
            self._switches = Switches()
            generators.restore()
            switches.restore(self._nesting)
        if isinstance(found, Failure):
            self._restart()
        return found

    def _run_all(
        self, calls: Sequence[Call], wanted: Sequence[GraphValue]
    ) -> tuple[Any, ...] | Failure:
        try:
            for at, call in enumerate(calls):
                self._run(call)
                if self._held > self._limit:
                    self._drop_unread(calls[at + 1 :], wanted)
            found = tuple(_plain(self._values[value]) for value in wanted)
        except Exception as error:
            return Failure(f"{type(error).__name__}: {error}")
        self._calls += calls
        self._generators = generators_before(self._drawing, self._tape.inputs)
        return found

    def _add_inputs(self) -> None:
        for item in self._tape.inputs[len(self._inputs) :]:
            self._inputs.add(item.value)
            self._originals.add(_memory(item.example))
            self._values[item.value] = self._own(item.example)

    def _resume(self) -> None:
        """Set the generators and switches as the last call that has run left them."""
        if self._generators is not None:
            self._generators.restore()
        if self._switches is not None:
            settings = self._switches.settings_from(Switches())
            for setter, args in (*nesting_settings(self._nesting), *settings):
                setter(*args)

    def _read_by(self, calls: Sequence[Call], wanted: Sequence[GraphValue]) -> set[GraphValue]:
        """The values that calls read, and those that are wanted."""
        read = {*wanted}
        unbacked = self._tape.unbacked.values
        for call in calls:
            read.update(values_in((call.args, call.kwargs)), call.mutates)
            for size in sizes_in((call.args, call.kwargs)):
                read.update(unbacked[name] for name in size.symbols() if name in unbacked)
        return read

    def _run(self, call: Call) -> None:
        for value in call.mutates:
            self._copy_memory(self._values[value])
        args, kwargs = self._argument(call.args), self._argument(call.kwargs)
        if call.kind == "method":
            result = getattr(args[0], str(call.target))(*args[1:], **kwargs)
        else:
            result = call.target(*args, **kwargs)  # type: ignore[operator]
        self._bind(call.result, result)

    def _argument(self, arg: Any) -> Any:
        """An argument of a call, with its values and sizes."""
        if isinstance(arg, (Expr, FloatExpr)):
            return evaluate_number(arg, {name: self._number(name) for name in arg.symbols()})
        if isinstance(arg, tuple):
            items = map(self._argument, arg)
            return type(arg)(*items) if hasattr(arg, "_fields") else tuple(items)
        if isinstance(arg, list):
            return list(map(self._argument, arg))
        if isinstance(arg, dict):
            return {key: self._argument(item) for key, item in arg.items()}
        if isinstance(arg, slice):
            return slice(*map(self._argument, (arg.start, arg.stop, arg.step)))
        return self._values[arg] if isinstance(arg, GraphValue) else arg

    def _number(self, name: str) -> int | float:
        """The value of a symbol."""
        defined = self._tape.unbacked.values.get(name)
        if defined is not None:
            return self._values[defined]  # type: ignore[no-any-return]
        hint = self._tape.size_env().bare_symbol(name).hint
        return float_of_bits(hint) if is_float_symbol(name) else hint

    def _bind(self, recorded: Any, result: Any) -> None:
        if isinstance(recorded, GraphValue):
            self._values[recorded] = result
            self._held += _bytes(result)
        elif isinstance(recorded, (tuple, list)):
            for at, item in enumerate(recorded):
                self._bind(item, result[at])
        elif isinstance(recorded, dict):
            for key, item in recorded.items():
                self._bind(item, result[key])

    def _copy_memory(self, written: Any) -> None:
        """Before a write to memory of the program: make all values that share it share a copy."""
        key = _memory(written)
        if key is not None and key in self._originals:
            self._copies[key] = written.untyped_storage().clone()
            self._values = {value: self._own(held) for value, held in self._values.items()}

    def _own(self, value: Any) -> Any:
        """`value`, or the same view of the copy if its memory was copied."""
        copy = self._copies.get(_memory(value) or 0)
        if copy is None:
            return value
        empty = torch.empty(0, dtype=value.dtype, device=value.device)
        return empty.set_(copy, value.storage_offset(), value.shape, value.stride())

    def _drop_unread(self, calls: Sequence[Call], wanted: Sequence[GraphValue]) -> None:
        """Drop the results that the rest of this observation does not read."""
        kept = self._read_by(calls, wanted) | self._inputs
        self._values = {
            value: held
            for value, held in self._values.items()
            if value in kept or not isinstance(held, torch.Tensor)
        }
        computed = [held for value, held in self._values.items() if value not in self._inputs]
        self._held = sum(map(_bytes, computed))
        self._limit = max(MOST_KEPT, 2 * self._held)


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, torch.Tensor) else value


def _bytes(value: Any) -> int:
    return value.nbytes if isinstance(value, torch.Tensor) else 0


def _memory(value: Any) -> int | None:
    """The address of the storage object of a strided tensor."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    return int(value.untyped_storage()._cdata)


# ---------------------------------------------------------------- repeatable

_TORCH_NAMESPACES = frozenset({"aten", "prim", "prims", "higher_order", "flambeau", NAMESPACE})


@dataclass(slots=True)
class _OwnEffects:
    """Whether calls have effects that cannot be taken back, as far as a list was looked at."""

    calls: list[Call] | None = None
    looked_at: int = 0
    found: bool = False


def is_repeatable(tape: Tape) -> bool:
    """Whether everything that has been recorded can be taken back."""
    seen, calls = tape.machine.state_of(_OwnEffects), tape.calls
    if seen.calls is not calls:
        seen.calls, seen.looked_at, seen.found = calls, 0, False
    seen.found = seen.found or any(map(_has_own_effect, calls[seen.looked_at :]))
    seen.looked_at = len(calls)
    return not seen.found and not _writes_for_good(tape)


def _has_own_effect(call: Call) -> bool:
    if call.pure or isinstance(call.target, str):
        return False
    if isinstance(call.target, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return _namespace(call.target) not in _TORCH_NAMESPACES
    module = getattr(call.target, "__module__", None) or "torch"  # torch's C functions have none
    return not is_trusted(module) and not module.startswith("flambeau_")


def _namespace(operator: Any) -> str:
    name = getattr(operator, "_qualified_op_name", None) or operator.name()
    return str(name).partition("::")[0]


def _writes_for_good(tape: Tape) -> bool:
    """Whether the frame wrote to a view, or to a tensor that keeps its gradient, for good."""
    return any(
        item.value.storage in tape.written_storages
        and (item.example._is_view() or item.example.retains_grad)
        for item in tape.inputs
        if isinstance(item.example, torch.Tensor)
    )
