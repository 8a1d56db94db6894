"""What the graph reads from before the call: tensors, symbolic numbers, objects that calls take.

    x, self.weight, n          Input(L['x'], f32[s0, 8]), Input(L['self'].weight, f32[8, 8]),
                               Input(L['n'], s1)

Each real tensor has one fake tensor, whose sizes are symbols where they may vary.

Torch-level calls run under a `SpecTracer` while they are recorded.
"""

from __future__ import annotations

import functools
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.interpreter.torch_calls.wrappers import wrapper_input
from flambeau_capture.interpreter.values import numbers
from flambeau_capture.interpreter.values.subclasses import (
    Subclasses,
    has_handler,
    is_admitted,
    plain_tensor,
)
from flambeau_capture.marks import bound, depends, marks_of
from flambeau_capture.reasons import GraphBreak
from flambeau_capture.record import GraphValue, Input, Opaque
from flambeau_capture.sources import CallOf, InstanceDict, Source, TensorSize
from flambeau_prims import eager_checks
from flambeau_prims.fake import FakeTensor, fake_like
from flambeau_prims.operator_facts import is_check
from flambeau_prims.raising import can_raise
from flambeau_prims.size_floats import FloatExpr, float_symbol, is_unbacked
from flambeau_prims.sizes import SizeEnv
from flambeau_prims.sizes_node import from_symbolic, to_symbolic
from flambeau_prims.tracer import MutatingCall, Tracer, left_to_subclass
from flambeau_prims.wrapper_subclasses import is_wrapper_subclass, leaves_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from flambeau_capture.interpreter.protocols import Recorder
    from flambeau_capture.sources import Scope
    from flambeau_prims.fake import FakeTensor
    from flambeau_prims.size_floats import Condition
    from flambeau_prims.sizes import Expr, SizeEnv

_TENSOR_TYPES = (torch.Tensor, torch.nn.Parameter)


class Inputs:
    """The inputs of one capture, in the order of first use, and the symbols of their sizes."""

    def __init__(self, machine: Recorder, device: torch.device | str) -> None:
        self.machine = machine
        whole = machine.options.fullgraph
        static = machine.dynamic.mode is False and not whole
        self.env: SizeEnv | None = None if static else SizeEnv()
        machine.speculation.attach(self.env)
        self.tracer = SpecTracer(self.env, device, unbacked=whole)
        self.declared = None if self.env is None else machine.dynamic.declare(self.env)
        if self.env is not None:
            self.env.place = self._place
        self.subclasses = Subclasses(machine)
        self.inputs: list[Input] = []
        self._input_of: dict[int, tuple[torch.Tensor, FakeTensor, Input]] = {}
        """By id of the real tensor."""
        self._input_of_fake: dict[int, tuple[torch.Tensor, Input]] = {}
        self._values: dict[int, tuple[Any, GraphValue]] = {}
        """By id of the fake tensor: the graph values of inputs, and of what calls compute."""
        self._duck: dict[int, Expr] = {}
        self._outer_sizes: dict[int, Expr] = {}
        """The dynamic sizes of the wrapper whose inner tensors become inputs, by their hints."""
        self._numbers: dict[Source, Any] = {}
        self._computed: dict[FloatExpr, FloatExpr] = {}
        self._undecided: dict[str, tuple[Source, int]] = {}
        """By its symbol: sizes that are marked as unbacked."""
        self._objects: dict[int, tuple[Any, GraphValue]] = {}
        """By id: objects that the graph hands on as they are, and their values."""

    # ------------------------------------------------------------ tensors

    def fake_input(self, real: torch.Tensor, source: Source) -> FakeTensor:
        """The fake tensor for a tensor that existed before the call."""
        found = self._input_of.get(id(real))
        if found is not None:
            if found[2].source is not source:
                self.machine.guard("ALIAS", source, found[2].source)
            return found[1]
        if type(real) is FakeTensor:
            raise GraphBreak("unsupported-tensor", f"a fake tensor at {source.text()}")
        kind = type(real)
        if is_wrapper_subclass(kind):
            return self._note(real, *wrapper_input(self, real, source, _name_of(source)))
        user_real, user_source = real, source
        if kind not in _TENSOR_TYPES:
            if not is_admitted(kind):
                raise GraphBreak("tensor-subclass", f"{source.text()} is a {kind.__name__}")
            if has_handler(kind):
                self.machine.guard("TYPE", source, kind)
                real, source = plain_tensor(real), CallOf(plain_tensor, (source,))
        if (
            real.layout is not torch.strided
            or real.is_quantized
            or torch._C._functorch.is_functorch_wrapped_tensor(real)
        ):
            raise GraphBreak("unsupported-tensor", f"{source.text()} has layout {real.layout}")
        if real.is_conj() or real.is_neg() or real.is_nested:
            detail = f"{source.text()} is a lazily conjugated, negated or nested tensor"
            raise GraphBreak("unsupported-tensor", detail)
        dims = self._dynamic_dims(real, source)
        fake = fake_like(real, self.env, dims, source=source.text())
        fake.storage_record.memory = _Memory(self.machine, real, source)
        name = _name_of(user_source)
        value = GraphValue(fake.spec, name, real.requires_grad, fake.storage_record)
        entry = Input(source, real, fake.spec, value)
        self.inputs.append(entry)
        if kind not in _TENSOR_TYPES:
            self.subclasses.note(fake, kind)
            entry = Input(user_source, user_real, fake.spec, value)  # what the program itself holds
        self._input_of[id(user_real)] = (user_real, fake, entry)
        self._input_of_fake[id(fake)] = (user_real, entry)
        self._values[id(fake)] = (fake, value)
        return fake

    def _note(self, real: torch.Tensor, fake: Any, entry: Input) -> Any:
        self.inputs.append(entry)
        self._input_of[id(real)] = (real, fake, entry)
        self._input_of_fake[id(fake)] = (real, entry)
        self._values[id(fake)] = (fake, entry.value)
        return fake

    @contextmanager
    def sizes_within(self, wrapper: torch.Tensor, source: Source) -> Iterator[None]:
        """While inner tensors of a wrapper become inputs: its dynamic sizes are theirs, too."""
        before = self._outer_sizes
        numbers = all(type(size) is int for size in wrapper.shape)
        if numbers:
            # A symbol is read from an inner tensor, so sizes that none has stay numbers.
            inner = {size for leaf in leaves_of(wrapper) for size in leaf.shape}
            dims = self._dynamic_dims(wrapper, source, inner)
            self._outer_sizes = {wrapper.shape[dim]: size for dim, size in dims.items()}
        try:
            yield
        finally:
            self._outer_sizes = before

    def _dynamic_dims(
        self, real: torch.Tensor, source: Source, among: set[int] | None = None
    ) -> dict[int, Expr]:
        """Symbols for the dynamic sizes: 0 and 1 are specialised, equal sizes share a symbol."""
        if self.declared is not None:
            declared = self.declared.sizes_of(real)
            if declared is not None:
                return declared
        marks = marks_of(real, source, self.machine.options.dynamic_shapes)
        env = self.env
        if env is None and any(mark.must_be_symbolic for mark in marks.values()):
            env = self.size_env()
        if env is None or (isinstance(real, torch.nn.Parameter) and not marks):
            return {}
        dynamic = self.machine.dynamic
        usually = not (dynamic.mode is True and _in_module(source, self.machine.scope))
        dims: dict[int, Expr] = {}
        for dim, size in enumerate(real.shape):
            mark = marks.get(dim)
            if among is not None and size not in among:
                continue
            if size < 2 or (mark is not None and mark.kind == "static"):
                continue
            if size in self._outer_sizes:
                dims[dim] = self._outer_sizes[size]
                continue
            if mark is not None and mark.kind == "unbacked":
                dims[dim] = self._unbacked_size(size, source, dim)
                continue
            if (mark is not None and (mark.kind == "dynamic" or dynamic.mode is not False)) or (
                usually and dynamic.is_dynamic(source, dim)
            ):
                if (
                    size not in self._duck or dynamic.numbers
                ):  # an entry for all: sizes may differ that do not now
                    self._duck[size] = env.symbol(size, TensorSize(source, dim))
                dims[dim] = self._duck[size]
                if mark is not None:
                    bound(dims[dim], mark, source, dim)
        return dims

    def _unbacked_size(self, size: int, source: Source, dim: int) -> Expr:
        """A symbol for a size that nothing may depend on: a question about it is an error."""
        env = self.size_env()
        made = env.symbol(size, TensorSize(source, dim))
        self._undecided[str(made)] = (source, dim)
        env.refuse = self._refuse
        return made

    def is_open(self, condition: Condition | bool) -> bool:
        """Whether a condition stays undecided unless the program branches on it."""
        if isinstance(condition, bool):
            return False
        if is_unbacked(condition):
            return True
        return not condition.symbols().isdisjoint(self._undecided) and condition.known() is None

    def _refuse(self, names: set[str], question: str) -> None:
        for name in sorted(names & self._undecided.keys()):
            raise depends(*self._undecided[name], question)

    def size_env(self) -> SizeEnv:
        """The SizeEnv; of a capture with nothing symbolic so far, made now."""
        if self.env is None:
            self.env = self.tracer.env = SizeEnv()
            self.env.place = self._place
            self.machine.speculation.attach(self.env)
        return self.env

    def _place(self) -> str:
        """The user's line, for guards on sizes; none once the capture is over."""
        machine = self.__dict__.get("machine")
        return machine.where if machine is not None and hasattr(machine, "frame") else ""

    def input_of(self, fake: torch.Tensor) -> tuple[torch.Tensor, Input] | None:
        """The real tensor and Input behind a fake tensor; None if the frame computed it."""
        return self._input_of_fake.get(id(fake))

    def real_type(self, fake: torch.Tensor) -> type:
        """The type that the program sees."""
        if type(fake) is not FakeTensor and is_wrapper_subclass(type(fake)):
            return type(fake)
        subclass = self.subclasses.of(fake)
        if subclass is not None:
            return subclass
        return torch.nn.Parameter if getattr(fake, "_is_param", False) else torch.Tensor

    def tensor_instance_of(self, fake: torch.Tensor, cls: Any) -> bool:
        """`isinstance(tensor, cls)`."""
        kind = self.real_type(fake)
        if cls is torch.Tensor:
            return True
        if kind is type(fake):
            return isinstance(fake, cls)
        if cls is torch.nn.Parameter:
            return kind is cls
        if type(cls) is type(torch.FloatTensor):
            return isinstance(fake, cls)
        if cls is FakeTensor:
            return False
        return issubclass(kind, cls) if isinstance(cls, type) else isinstance(fake, cls)

    # ------------------------------------------------------------ numbers and other objects

    def symbolic_number(self, value: int | float, source: Source) -> Any:
        """A SymInt or SymFloat for a number of the program; the same one for one source."""
        found = self._numbers.get(source)
        if found is None:
            expr = self._number_symbol(value, source)
            self.inputs.append(Input(source, value, expr, GraphValue(expr, _name_of(source))))
            found = self._numbers[source] = to_symbolic(expr)
        return found

    def _number_symbol(self, value: int | float, source: Source) -> Expr | FloatExpr:
        assert self.env is not None
        if isinstance(value, float):
            return float_symbol(self.env, value, source)
        declared = None if self.declared is None else self.declared.int_at(source)
        if declared is not None:
            return declared
        return self.env.symbol(value, source, lower=numbers.lower_bound(value))

    def is_of_numbers(self, expr: Expr | FloatExpr) -> bool:
        """Whether a number is computed from numbers of the program, and not from sizes only."""
        symbols = expr.env.symbols
        return any(symbols[name].source in self._numbers for name in expr.symbols())

    def number(self, inner: Any) -> Any:
        """A symbolic number as an argument; floats computed by Python are inputs."""
        if (
            not isinstance(inner, FloatExpr)
            or inner.symbol is not None
            or is_unbacked(inner)
            or not self.is_of_numbers(inner)
        ):
            return inner
        found = self._computed.get(inner)
        if found is None:
            made = self.symbolic_number(inner.hint, numbers.computed_source(inner))
            found = self._computed[inner] = from_symbolic(made)
        return found

    def opaque(self, value: Any) -> GraphValue:
        """The graph value of an object that calls take as it is, or a new input."""
        found = self._objects.get(id(value))
        if found is not None:
            return found[1]
        source = self.machine.objects.source_of(value)
        if source is None:
            raise GraphBreak("unsupported-argument", f"a {type(value).__name__} of unknown origin")
        spec = Opaque(type(value))
        entry = Input(source, value, spec, GraphValue(spec, _name_of(source)))
        self.inputs.append(entry)
        return self.declare_opaque(value, entry.value)

    def declare_opaque(self, value: Any, graph_value: GraphValue) -> GraphValue:
        """Note the graph value of an object that the frame has made, or that it was given."""
        self._objects[id(value)] = (value, graph_value)
        return graph_value

    def is_opaque(self, value: Any) -> bool:
        """Whether the frame has made an object that only the graph can make."""
        return id(value) in self._objects


@dataclass(frozen=True, slots=True)
class _Memory:
    """The memory of an input: offset and size, each guarded when it is read."""

    machine: Recorder
    real: torch.Tensor
    source: Source

    def offset(self) -> int:
        return self._guarded(torch.Tensor.storage_offset)

    def size(self) -> int:
        return self._guarded(memory_size)

    def _guarded(self, question: Callable[[torch.Tensor], Any]) -> int:
        answer: int = question(self.real)
        self.machine.guard("EQUALS", CallOf(question, (self.source,)), answer)
        return answer


def memory_size(tensor: torch.Tensor) -> int:
    """The bytes of the memory that a tensor is in."""
    return tensor.untyped_storage().nbytes()


def _name_of(source: Source) -> str:
    """A name for a placeholder: what the user calls it, made an identifier."""
    text = source.text().replace("L['", "").replace("']", "")
    text = "".join(letter if letter.isalnum() else "_" for letter in text).strip("_")
    return text if text and not text[0].isdigit() else f"arg_{text}"


def _in_module(source: Source, scope: Scope) -> bool:
    """Whether a tensor is read from an nn.Module: such sizes are static until they change."""
    current: Any = source
    while current is not None:
        if isinstance(current, InstanceDict) and isinstance(
            current.base.load(scope), torch.nn.Module
        ):
            return True
        current = getattr(current, "base", None)
    return False


# ---------------------------------------------------------------- spec tracer


class SpecTracer(Tracer):
    """Answers ATen calls by shape rules; notes writes, draws and checks, and records nothing."""

    def __init__(self, env: SizeEnv | None, device: torch.device | str, *, unbacked: bool) -> None:
        super().__init__(env=env, record=False, device=device, unbacked=unbacked)
        self.written: list[torch.Tensor] = []
        self.random = False
        self.checks = False
        self.can_raise = False
        self.taken: list[FakeTensor] = []
        """Tensors whose number the call asks for."""

    def start_call(self) -> None:
        """Forget what the torch-level call before has done."""
        self.written, self.taken = [], []
        self.random = self.checks = self.can_raise = False

    def item(self, tensor: FakeTensor) -> Any:
        """As `Tracer.item`."""
        self.taken.append(tensor)
        return super().item(tensor)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if left_to_subclass(types):
            return NotImplemented
        if _may_draw(func) and not _drops_nothing(func, args, kwargs):
            self.random = True
        if is_check(func):
            self.checks = True
        if not self.can_raise and can_raise(func, args):
            self.can_raise = True
        if func in _UPDATES_STATISTICS and args[5]:
            self.written.extend(statistic for statistic in args[3:5] if statistic is not None)
        return super().__torch_dispatch__(func, types, args, kwargs)

    def _infer(self, key: Any, func: Any, rule_args: Any, rule_kwargs: Any) -> Any:
        try:
            result = super()._infer(key, func, rule_args, rule_kwargs)
        except NotImplementedError as error:
            refused = eager_checks.refusal(func, rule_args, rule_kwargs, error)
        else:
            eager_checks.check(func, rule_args, rule_kwargs)
            return result
        raise refused

    def _mutate(self, call: MutatingCall) -> Any:
        facts = call.facts
        self.written.extend(facts.written(call.args, call.kwargs))
        result = super()._mutate(call)
        if not facts.out:
            if facts.random:
                eager_checks.check_fill(call.func, call.rule_args, call.rule_kwargs)
            else:
                checked = facts.functional or call.func
                eager_checks.check(checked, call.rule_args, call.rule_kwargs)
        return result


_UPDATES_STATISTICS = frozenset(
    {
        torch.ops.aten.native_batch_norm.default,
        torch.ops.aten.cudnn_batch_norm.default,
        torch.ops.aten.miopen_batch_norm.default,
    }
)
"""Arguments 3 and 4 are statistics, 5 is `training`: then both are written, as no schema says."""


@functools.cache
def _may_draw(func: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in func.tags


def _drops_nothing(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether an attention operator draws no random numbers: its dropout has probability 0."""
    at = _place_of_dropout(func)
    if at is None:
        return False
    given = args[at] if at < len(args) else (kwargs or {}).get("dropout_p", 0.0)
    return type(given) is float and given == 0.0


@functools.cache
def _place_of_dropout(func: Any) -> int | None:
    names = [argument.name for argument in func._schema.arguments]
    return names.index("dropout_p") if "dropout_p" in names else None
