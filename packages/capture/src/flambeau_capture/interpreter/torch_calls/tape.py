"""The tape: runs torch-level calls natively on fake tensors, and writes each down once, as the
program made it.

What a call returns, writes and draws from a generator is found by running it under a `SpecTracer`;
a call is kept when it makes a tensor, writes to one, or changes torch's state. Tensors that existed
before the call become inputs, one for each real tensor.
"""

from __future__ import annotations

import functools
import itertools
import operator
import types
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import torch

from flambeau_capture.graphs.autograd_calls import FailingCall
from flambeau_capture.graphs.graph_module import values_in
from flambeau_capture.graphs.host_random import KnownState, is_host_generator_type
from flambeau_capture.interpreter import foreign_types
from flambeau_capture.interpreter.protocols import Recorder
from flambeau_capture.interpreter.torch_calls import data_dependent_predicates
from flambeau_capture.interpreter.torch_calls.contexts import DefaultDevices
from flambeau_capture.interpreter.torch_calls.data_dependent_predicates import (
    known_truth,
    learn_range,
)
from flambeau_capture.interpreter.torch_calls.inputs import Inputs
from flambeau_capture.interpreter.torch_calls.operators_inside import OperatorsInside
from flambeau_capture.interpreter.torch_calls.torch_functions import as_eager
from flambeau_capture.interpreter.values.numbers import (
    call_on_tensors,
    takes_tensor_as_number,
    with_numbers,
)
from flambeau_capture.interpreter.values.subclasses import NOT_DISPATCHED
from flambeau_capture.interpreter.values.unbacked import UnbackedNumbers, select_unbacked
from flambeau_capture.reasons import GraphBreak
from flambeau_capture.record import Call, GraphValue
from flambeau_prims import error_texts
from flambeau_prims.concrete_sizes import with_concrete_sizes
from flambeau_prims.fake import FakeTensor, fake_like
from flambeau_prims.function_table import FunctionTable
from flambeau_prims.sharding import masks_of, release_fake_masks
from flambeau_prims.sizes_node import from_symbolic, to_symbolic
from flambeau_prims.unsupported import DataDependent, OutArgument, Unsupported
from flambeau_prims.view_chains import shortened
from flambeau_prims.wrapper_subclasses import (
    SubclassSpec,
    is_opaque_type,
    is_wrapper_subclass,
    leaves_of,
    spec_of_any,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from flambeau_capture.interpreter.protocols import Args, Kwargs
    from flambeau_capture.interpreter.torch_calls.contexts import InferenceGuard
    from flambeau_capture.interpreter.torch_calls.hooks import GradFn, HookHandle
    from flambeau_capture.interpreter.values.objects import Objects

_CONSTANTS = frozenset({
    int, float, bool, complex, str, type(None), torch.dtype, torch.device, torch.layout,
    torch.memory_format, type(...),
})  # fmt: skip
_HELD = (
    torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool, torch.Generator, torch.ScriptObject,
    torch._ops.OpOverload, torch._ops.OpOverloadPacket, KnownState, int, float, str, slice, range,
    type,
)  # fmt: skip
_NESTING: dict[Any, int] = {
    torch.autocast_increment_nesting: 1,
    torch.autocast_decrement_nesting: -1,
}
_NOT_RECORDED = frozenset({
    "backward", "register_hook", "register_post_accumulate_grad_hook", "share_memory_", "storage",
    "untyped_storage", "_typed_storage", "_update_names", "module_load", "__reduce_ex__",
    "__setstate__", "__dlpack__", "__dlpack_device__", "__array__", "data_ptr", "retain_grad",
    "numpy", "refine_names", "is_shared", "is_pinned", "pin_memory", "_make_subclass",
    "as_subclass", "__array_wrap__", "set_", "record_stream", "is_set_to",
    "__cuda_array_interface__",
})  # fmt: skip
"""Methods of torch.Tensor that a graph cannot hold: they expose memory, history or other views."""


def is_recorded_method(name: str) -> bool:
    """Whether a method of torch.Tensor may stand in a graph."""
    return name not in _NOT_RECORDED and callable(getattr(torch.Tensor, name, None))


_BETWEEN = frozenset({torch._C._set_default_dtype})
"""Switches that compilers read when they take a graph apart: it is cut where one is set."""

_FROM_DATA = frozenset({torch.tensor, torch.as_tensor, torch.asarray})
"""Functions that make a tensor of data; on meta they bypass the dispatcher, and so the tracer."""

_HISTORY_CHANGES = frozenset({"requires_grad_", "detach_"})
"""Methods that change what autograd knows of their tensor, and nothing else."""


def _check_written(function: Any, outs: Any, written: list[torch.Tensor]) -> None:
    """Raise OutArgument if a call has not written to one of its out= arguments.

    Functions of many operators may compute otherwise on tensors such as the tracer's, and forget
    out= there.
    """
    memory = {id(getattr(tensor, "storage_record", None)) for tensor in written}
    for out in outs if isinstance(outs, (tuple, list)) else (outs,):
        if isinstance(out, FakeTensor) and id(out.storage_record) not in memory:
            name = getattr(function, "__name__", repr(function))
            raise OutArgument(f"{name} writes to its out= argument only when it is not traced")


_AUTOCAST_DEVICES = ("cpu", "cuda")


def _set_autocast(enabled: list[bool]) -> None:
    for device, value in zip(_AUTOCAST_DEVICES, enabled, strict=True):
        if torch.is_autocast_enabled(device) != value:
            torch.set_autocast_enabled(device, value)


class TapeRecorder(Recorder, Protocol):
    """A capture as the modules above the tape see it."""

    @property
    def objects(self) -> Objects: ...
    @property
    def tape(self) -> Tape: ...


class Tape(Inputs):
    """Calls, inputs and graph values of one capture."""

    def __init__(self, machine: Recorder, device: torch.device | str) -> None:
        super().__init__(machine, device)
        self.unbacked = UnbackedNumbers(self)
        self.functions = FunctionTable(device)
        self.calls: list[Call] = []
        self.written_storages: set[object] = set()
        """The storage tokens of values that calls have written to."""
        self.autocast_nesting = 0
        """Autocast blocks that the frame has entered and not left."""
        self.inference_guards: list[InferenceGuard] = []
        """Inference modes that the frame has entered and not left, the outermost first."""
        self.subgraphs = 0
        """Nodes with graphs of their own that are being recorded, one inside the other."""
        self._hands_on = False
        self.devices = DefaultDevices()
        self.dispatch_guards: weakref.WeakSet[Any] = weakref.WeakSet()
        self.hooks: list[HookHandle] = []
        """Hooks that the frame has registered, in order."""
        self.hooked: list[Any] = []
        """The memory of tensors with hooks; hooks stay with the node that made the tensor."""
        self.grad_fns: dict[int, GradFn] = {}
        """By id of a fake tensor's node: what the program holds for it."""
        self.seeds: dict[int, Any] = {}
        """By id: the seeds of generators that the frame has seeded and not set otherwise since."""
        self.drawn = 0
        """How many numbers the frame has drawn from generators of the host."""
        self.seeded: dict[int, KnownState] = {}
        """By id: the states of generators of the host that the frame has seeded itself."""
        self.subgraph_inputs: dict[int, tuple[torch.Tensor, str]] = {}
        """By id: tensors that exist inside a node's subgraph only, and what that node is."""

    def value_of(self, fake: torch.Tensor) -> GraphValue:
        """The graph value of a fake tensor."""
        found = self._values.get(id(fake))
        if found is None:
            inside = self.subgraph_inputs.get(id(fake))
            if inside is not None:
                detail = f"a tensor that {inside[1]} computes is used outside it"
                raise GraphBreak("higher-order-operator", detail)
            detail = "a tensor was computed by native code that the tape does not see"
            raise GraphBreak("unknown-c-function", detail)
        return found[1]

    def is_value(self, fake: torch.Tensor) -> bool:
        """Whether a fake tensor is a value of the graph that is being recorded."""
        return id(fake) in self._values

    # ------------------------------------------------------------ subgraphs

    def declare(self, fake: FakeTensor, name: str) -> GraphValue:
        """Make a fake tensor a value of the graph being recorded: the parameter of a subgraph."""
        value = GraphValue(fake.spec, name, fake.requires_grad, fake.storage_record)
        self._values[id(fake)] = (fake, value)
        return value

    def values_made(self) -> int:
        """A mark for `enclose` and `made_since`."""
        return len(self._values)

    def made_since(self, mark: int) -> dict[int, tuple[Any, GraphValue]]:
        """The values made since a mark, by id of the fake tensor, without the frame's inputs."""
        made = itertools.islice(self._values.items(), mark, None)
        return {key: entry for key, entry in made if key not in self._input_of_fake}

    def mark_inside(
        self, mark: int, what: str, results: frozenset[GraphValue] = frozenset()
    ) -> None:
        """Hide the values made since a mark, which exist inside a node's subgraph only; `results`
        are also the node's.
        """
        for key, (fake, value) in self.made_since(mark).items():
            if value not in results:
                del self._values[key]
                self.subgraph_inputs[key] = (fake, what)

    def release_fake_masks(self) -> None:
        """Empty what calls on DTensors have left in plans that eager calls share."""
        held = (*self._values.values(), *self.subgraph_inputs.values())
        for tensor, _ in held:
            if type(tensor) is not FakeTensor:
                release_fake_masks(masks_of(tensor))

    def fakes_of(self, values: Iterable[Any]) -> list[Any]:
        """Graph values and sizes as the arguments of a call."""
        wanted = list(values)
        fakes = {value: fake for fake, value in self._values.values()} if wanted else {}
        return [fakes[v] if isinstance(v, GraphValue) else to_symbolic(v) for v in wanted]

    @contextmanager
    def recording(self, *, grad: bool | None = None, autocast: bool = True) -> Iterator[list[Call]]:
        """Collect the calls made inside apart from the frame's own, for a subgraph that a node
        holds.

        What a function reads inside is guarded as anywhere; tensors that it reads from outside are
        lifted to arguments of the subgraph (`build_subgraph`). `grad` is the grad mode inside
        (None: as it is), `autocast=False` leaves all autocast blocks: neither is recorded.
        """
        calls: list[Call] = []
        outer, self.calls = self.calls, calls
        self.subgraphs += 1
        # A number that a subgraph defines would be known to nobody outside of it.
        unbacked, self.tracer.unbacked = self.tracer.unbacked, False
        grad_outside = torch.is_grad_enabled()
        cast_outside = [torch.is_autocast_enabled(device) for device in _AUTOCAST_DEVICES]
        if grad is not None:
            torch._C._set_grad_enabled(grad)
        if not autocast:
            _set_autocast([False] * len(_AUTOCAST_DEVICES))
        try:
            yield calls
        finally:
            self.calls = outer
            self.subgraphs -= 1
            self.tracer.unbacked = unbacked
            torch._C._set_grad_enabled(grad_outside)
            _set_autocast(cast_outside)

    # ------------------------------------------------------------ calls

    def record(
        self,
        target: Callable[..., Any] | str,
        args: Args,
        kwargs: Kwargs | None = None,
        result: Any = None,
        *,
        where: str = "",
        **flags: Any,
    ) -> None:
        """Append a call of a function, or of a method by its name; `flags` are fields of Call."""
        kind: Any = "method" if isinstance(target, str) else "function"
        where = where or self.machine.where
        self.calls.append(Call(kind, target, args, kwargs or {}, result, where, **flags))
        mutates = flags.get("mutates")
        if mutates:
            self.written_storages.update(value.storage for value in mutates)

    def call_function(
        self, target: Callable[..., Any], args: Args, kwargs: Kwargs | None = None
    ) -> Any:
        """Run and record `target(*args, **kwargs)`, or pass it to tensor subclasses in it."""
        overloads = self.subclasses.overloads(args, kwargs or {})
        if overloads:
            result = self.subclasses.dispatch(overloads, target, args, kwargs or {})
            if result is not NOT_DISPATCHED:
                return result
        return self._call(target, target, args, kwargs or {})

    def call_method(self, name: str, args: Args, kwargs: Kwargs | None = None) -> Any:
        """Run and record `args[0].name(*args[1:], **kwargs)`."""
        if name == "backward":
            raise GraphBreak("backward", "call of Tensor.backward")
        if name in _NOT_RECORDED:
            raise GraphBreak("tensor-attribute", f"call of Tensor.{name}")
        overloads = self.subclasses.overloads(args, kwargs or {})
        if overloads:
            method = getattr(torch.Tensor, name)
            result = self.subclasses.dispatch(overloads, method, args, kwargs or {})
            if result is not NOT_DISPATCHED:
                return result
        if name == "item" and not self.tracer.unbacked and args[0].dtype is torch.bool:
            return self.truth(args[0])
        if name == "storage_offset" and type(args[0]) is FakeTensor:
            memory = args[0].storage_record.memory
            if memory is not None:
                memory.offset()
        if name == "tolist" and self.tracer.unbacked:
            return self.unbacked.tolist(args[0])
        if kwargs and takes_tensor_as_number(name, kwargs):
            return call_on_tensors(self, name, args, kwargs)
        if name in _HISTORY_CHANGES:
            return self._change_history(name, args, kwargs or {})
        result = self._call(name, getattr(torch.Tensor, name), args, kwargs or {})
        if type(result) is torch.SymFloat:
            learn_range(self, args[0], result)
        return result

    def _change_history(self, name: str, args: Args, kwargs: Kwargs) -> torch.Tensor:
        """`t.requires_grad_(...)` and `t.detach_()`, which no operator sees."""
        tensor = args[0]
        before = tensor.requires_grad
        getattr(tensor, name)(*args[1:], **kwargs)
        if tensor.requires_grad != before:
            value = self.value_of(tensor)
            self.record(name, (value, *args[1:]), kwargs, value, pure=False)
        return tensor

    def call_state(self, target: Callable[..., Any], args: Args, kwargs: Kwargs) -> Any:
        """Run for real and record a call that changes torch's state (grad mode, autocast)."""
        result = target(*args, **kwargs)
        self.autocast_nesting += _NESTING.get(target, 0)
        self.record_setting(target, args, kwargs)
        return result

    def call_untraced(
        self,
        target: Callable[..., Any] | str,
        args: Args = (),
        kwargs: Kwargs | None = None,
        result: Any = None,
        *,
        mutates: tuple[GraphValue, ...] = (),
        can_raise: bool = False,
    ) -> None:
        """Record a call that is made when the graph runs, by itself: of a function, or of a method
        by its name. `result` stands for what it gives. Of calls that only use generators of the
        host `can_raise` says whether they may raise; all others may.
        """
        self._refuse_untraced(target)
        recorded = tuple([self._argument(arg) for arg in args])
        named = {name: self._argument(arg) for name, arg in (kwargs or {}).items()}
        flags: Any = {"mutates": mutates, "untraced": True, "can_raise": can_raise}
        self.record(target, recorded, named, result, pure=False, **flags)

    def call_left_to_torch(
        self, target: Callable[..., Any], like: Callable[..., Any], args: Args, *, is_random: bool
    ) -> Any:
        """Record a call that no tracer sees into; `like` makes tensors such as its results."""
        self._refuse_untraced(target)
        result = self._call(target, like, args, {})
        call = next(call for call in reversed(self.calls) if call.target is target)
        call.untraced, call.random, call.can_raise = True, is_random, True
        return result

    def _refuse_untraced(self, target: Any) -> None:
        if self.subgraphs:
            name = target if isinstance(target, str) else getattr(target, "__name__", "a function")
            detail = f"call of {name} in a function given to torch"
            raise GraphBreak("higher-order-operator", detail)

    def record_setting(
        self, target: Callable[..., Any], args: Args, kwargs: Kwargs | None = None
    ) -> None:
        """Record a call that changes torch's state without making it."""
        self.record(target, args, kwargs, pure=False, untraced=target in _BETWEEN)

    def getitem(self, tensor: torch.Tensor, key: Any) -> Any:
        """`tensor[key]`."""
        selected, rest = select_unbacked(self, tensor, key)
        if selected is not tensor and not rest:
            return selected
        return self.call_function(operator.getitem, (selected, rest))

    def setitem(self, tensor: torch.Tensor, key: Any, value: Any) -> None:
        """`tensor[key] = value`."""
        selected, rest = select_unbacked(self, tensor, key)
        if selected is not tensor:
            tensor, key = selected, rest or ...
        self.call_function(operator.setitem, (tensor, key, value))

    def truth(self, tensor: torch.Tensor) -> bool:
        """`bool(tensor)`: known for literals and some random numbers, else assumed or a break."""
        if type(tensor) is FakeTensor and tensor.contents is None and tensor.spec.numel == 1:
            known = known_truth(self, tensor)
            if known is None:
                known = self.machine.speculation.truth(tensor)
            if known is not None:
                return known
        return bool(tensor)

    def _call(self, target: Any, function: Callable[..., Any], args: Args, kwargs: Kwargs) -> Any:
        answered = data_dependent_predicates.answer(self, function, args, kwargs)
        if answered is not NotImplemented:
            return answered
        if self.devices.inside:
            kwargs = self.devices.given(function, kwargs)
        try:
            result = self._run(target, function, args, kwargs)
        except RuntimeError as error:
            refused = error_texts.SYMBOLIC_SIZES_REFUSED.matches(error)
            if not refused and not (isinstance(error, DataDependent) and self.tracer.taken):
                # A function in Python is followed instead; an operator has nothing inside.
                in_c = isinstance(target, str) or type(function) is types.BuiltinFunctionType
                if isinstance(error, DataDependent) and in_c:
                    return self._call_inside(error, target, function, args, kwargs)
                raise
            args, kwargs = with_numbers(self, args, kwargs, self.tracer.taken)
            if refused:
                args, kwargs = with_concrete_sizes(args, kwargs)
            result = self._run(target, function, args, kwargs)
        if self.env is not None and self.env.assumed:
            self.unbacked.write_checks()  # the call may rely on them
        tracer, written = self.tracer, self.tracer.written
        new: list[torch.Tensor] = []
        if type(result) is FakeTensor:
            if id(result) not in self._values:
                new.append(result)
        elif result is not None and type(result) not in _CONSTANTS:
            self._find_new(result, new)
        defined = self.unbacked.fresh()
        if not (new or written or defined or tracer.checks):
            return result
        self._hands_on = False
        recorded_args = tuple([self._argument(arg) for arg in args])
        recorded_kwargs = {name: self._argument(arg) for name, arg in kwargs.items()}
        untraced = self._hands_on
        if untraced:
            self._refuse_untraced(target)
        known = self._values
        mutates = self._mutated(written, (recorded_args, recorded_kwargs)) if written else ()
        limit = self.machine.options.call_limit
        if len(self.calls) >= limit:
            raise GraphBreak("call-limit", f"more than {limit} calls of torch in one graph")
        stem = target if isinstance(target, str) else getattr(target, "__name__", "value")
        for tensor in new:
            spec, storage = spec_of_any(tensor), getattr(tensor, "storage_record", None)
            known[id(tensor)] = (tensor, GraphValue(spec, stem, tensor.requires_grad, storage))
        self.record(
            target,
            recorded_args,
            recorded_kwargs,
            self._result(result),
            pure=not (written or tracer.random or tracer.checks or untraced),
            mutates=mutates,
            untraced=untraced,
            random=tracer.random,
            can_raise=tracer.can_raise,
        )
        if defined or (self.env is not None and self.env.assumed):
            self.unbacked.bind_unbacked(defined, new)  # type: ignore[arg-type]
        return result

    def _call_inside(
        self, error: DataDependent, target: Any, function: Any, args: Args, kwargs: Kwargs
    ) -> Any:
        """Record the operators of a call instead of it; the error, if these do not help."""
        calls, mark = len(self.calls), self.values_made()
        try:
            with OperatorsInside(self):
                result = self._run(target, function, args, kwargs)
        except DataDependent:
            del self.calls[calls:]
            raise error from None
        for fake, value in self.made_since(mark).values():
            value.requires_grad = fake.requires_grad  # which autograd decides above the operators
        return result

    def _mutated(self, written: list[torch.Tensor], operands: Any) -> tuple[GraphValue, ...]:
        """The values whose data a call has written, also through its own views (`x[1:] = y`)."""
        found: dict[GraphValue, None] = {}
        for tensor in written:
            known = self._values.get(id(tensor))
            if known is not None:
                found[known[1]] = None
                continue
            storage = tensor.storage_record  # type: ignore[attr-defined]
            found.update((value, None) for value in values_in(operands) if value.storage is storage)
        found.update((value, None) for value in values_in(operands) if self._holds(value, written))
        return tuple(found)

    def _holds(self, value: GraphValue, written: list[torch.Tensor]) -> bool:
        """Whether a value is a wrapper of memory that was written."""
        if not isinstance(value.spec, SubclassSpec):
            return False
        (wrapper,) = self.fakes_of([value])
        storages = {id(tensor.storage_record) for tensor in written}  # type: ignore[attr-defined]
        return any(id(leaf.storage_record) in storages for leaf in leaves_of(wrapper))  # type: ignore[attr-defined]

    def _run(self, target: Any, function: Callable[..., Any], args: Args, kwargs: Kwargs) -> Any:
        """The result of a call on fake tensors; the tracer notes its writes, draws and checks."""
        tracer = self.tracer
        tracer.start_call()
        if isinstance(target, str) and type(args[0]) is FakeTensor:
            called, rest = getattr(args[0], target), args[1:]
        else:
            called, rest = function, args
        try:
            with self.functions:  # here only, so that the program sees no function mode
                result = called(*rest, **kwargs)
        except TypeError as error:
            frame = self.machine.frame
            in_block = frame is not None and frame.is_in_block()
            if in_block and error_texts.ARGUMENT_TYPES_REFUSED.matches(error):
                # The text names fake tensors, and the block may look at it.
                detail = f"arguments that {function} refuses"
                raise GraphBreak("unknown-c-function", detail) from None
            raise
        except (IndexError, ValueError) as error:
            # Torch has asked for a value, and dropped the answer.
            if error_texts.SYMBOLIC_INDEX_REFUSED.matches(error):
                raise GraphBreak("data-dependent", "a tensor is indexed by data") from None
            as_eager(error, self.env)
            raise
        except RuntimeError as error:
            if not isinstance(error, Unsupported):
                as_eager(error, self.env)
                if tracer.written:
                    self._write_and_fail(function, args, kwargs)
            raise
        if self.hooked and any(
            getattr(tensor, "storage_record", None) in self.hooked for tensor in tracer.written
        ):
            detail = "a tensor is written to after a hook was registered on it"
            raise GraphBreak("tensor-attribute", detail)
        if kwargs.get("out") is not None:
            _check_written(function, kwargs["out"], tracer.written)
        if type(result) is FakeTensor:
            return result if id(result) in self._values else shortened(result)
        if type(result) is torch.Tensor and result.is_meta and function in _FROM_DATA:
            return fake_like(result)
        return result

    def _write_and_fail(self, function: Callable[..., Any], args: Args, kwargs: Kwargs) -> None:
        """Record a call that raised after it had written: a handler sees what was written."""
        operands = [self._argument(arg) for arg in (*args, *kwargs.values())]
        mutates = self._mutated(self.tracer.written, operands)
        self.call_untraced(FailingCall(function), args, kwargs, mutates=mutates)

    def _find_new(self, result: Any, new: list[torch.Tensor]) -> None:
        if isinstance(result, FakeTensor) or is_wrapper_subclass(type(result)):
            if id(result) not in self._values:
                new.append(result)
        elif isinstance(result, torch.Tensor):
            detail = "a torch call returned a tensor with real data while fake tensors are traced"
            raise GraphBreak("operator-unsupported", detail)
        elif isinstance(result, (tuple, list)):
            for item in result:
                self._find_new(item, new)
        elif isinstance(result, dict):
            for item in result.values():
                self._find_new(item, new)

    def _result(self, result: Any) -> Any:
        if isinstance(result, torch.Tensor):
            return self._values[id(result)][1]
        if isinstance(result, (tuple, list)):
            items = [self._result(item) for item in result]
            return tuple(items) if isinstance(result, tuple) else items
        if isinstance(result, dict):
            return {key: self._result(item) for key, item in result.items()}
        if isinstance(result, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return self.unbacked.result(from_symbolic(result))
        return result

    def _opaque_constant(self, arg: Any) -> Any:
        """An object that torch's compilers treat as a constant: one that is equal in each call."""
        source = self.machine.objects.source_of(arg)
        if source is not None:
            text = f"equals {arg!r}"
            self.machine.guard("PREDICATE", source, (functools.partial(operator.eq, arg), text))
        return arg

    def can_hold(self, arg: Any) -> bool:
        """Whether the record holds such an argument; see `_argument`."""
        kind = type(arg)
        if kind in _CONSTANTS or isinstance(arg, _HELD):
            return True
        if isinstance(arg, (tuple, list)):
            return all(map(self.can_hold, arg))
        if isinstance(arg, dict):
            return all(map(self.can_hold, arg.values()))
        is_object = is_host_generator_type(kind) or is_opaque_type(kind)
        return is_object or foreign_types.is_value(kind)

    def _argument(self, arg: Any) -> Any:
        """An argument as the record holds it."""
        kind = type(arg)
        if kind is FakeTensor:
            return self.value_of(arg)
        if kind in _CONSTANTS:
            return arg
        if kind is torch.SymInt or kind is torch.SymFloat or kind is torch.SymBool:
            return self.number(from_symbolic(arg))
        if isinstance(arg, tuple):
            return tuple([self._argument(item) for item in arg])
        if isinstance(arg, list):
            return [self._argument(item) for item in arg]
        if isinstance(arg, dict):
            return {key: self._argument(item) for key, item in arg.items()}
        if kind is slice:
            return slice(*[self._argument(part) for part in (arg.start, arg.stop, arg.step)])
        if kind is range:
            return tuple(arg)
        if kind is torch.Generator or is_host_generator_type(kind):
            self._hands_on = True
            return self.opaque(arg)
        if kind is torch.ScriptObject:
            self._hands_on = True
            source = self.machine.objects.source_of(arg)
            if source is not None:  # the call's result follows from what it holds
                self.machine.guard("IS", source, arg)
            return self.opaque(arg)
        if kind is KnownState:
            return arg
        if is_wrapper_subclass(kind):
            if self.dispatch_guards:
                raise GraphBreak("tensor-subclass", "a call without __torch_dispatch__")
            return self.value_of(arg)
        if is_opaque_type(kind):
            return self._opaque_constant(arg)
        for plain in (int, float, str):
            if isinstance(arg, plain):
                made: Any = plain
                return made.__new__(made, arg)
        if isinstance(arg, (torch._ops.OpOverload, torch._ops.OpOverloadPacket, type)):
            return arg
        if foreign_types.is_value(kind) and getattr(arg, "ndim", None) == 0:
            return arg.item()  # a scalar, which torch takes as the number it is
        raise GraphBreak("unsupported-argument", f"a {kind.__name__} is passed to a torch function")
