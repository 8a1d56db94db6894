"""The ATen tracer: runs eager PyTorch on fake tensors, and writes down each ATen call.

    tracer = Tracer()
    x = tracer.fake(Spec.of((4, 8)), requires_grad=True)
    with tracer:
        # any eager code; the C++ autograd engine too
        y = model(x)
    print(Graph([x.value], tracer.nodes, [y.value]))

Each call is answered by its shape rule (`rules.registry.infer`). Calls are recorded as they are:
in-place operators too, whose node lists the written argument's own Value as its result, and views,
whose results share the argument's `storage_record`. A real tensor that is met becomes a constant,
once. Asking for the contents of a fake tensor raises `DataDependent`, unless it is a literal
(`torch.tensor(2).item()`) or the tracer may go on with `unbacked` numbers.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode,
    _pop_mode,
    _push_mode,
)
from torch.utils._pytree import tree_leaves

from flambeau_prims import operator_facts, sharding
from flambeau_prims.fake import (
    ONE_OF_SEVERAL,
    FakeTensor,
    StorageRecord,
    carry_lazy_bits,
    make_fake,
    set_geometry,
)
from flambeau_prims.fused_optimizers import fused_step
from flambeau_prims.graph import Node, Value
from flambeau_prims.out_arguments import to_resize
from flambeau_prims.per_operator import per_operator
from flambeau_prims.rules.registry import infer, infer_keyed
from flambeau_prims.sizes import ExprEnv, as_int
from flambeau_prims.sizes_node import from_symbolic, from_symint, to_symbolic, to_symint
from flambeau_prims.spec import Spec, spec_of
from flambeau_prims.storage_bounds import require_inside
from flambeau_prims.unbacked import UNBACKED_RULES, new_number
from flambeau_prims.unsupported import DataDependent, MetadataMutation, Unsupported
from flambeau_prims.wrapper_subclasses import is_wrapper_subclass

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from types import TracebackType

    from flambeau_prims.known_masks import Mask
    from flambeau_prims.operator_facts import OperatorFacts

aten = torch.ops.aten

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
_PLAIN = frozenset(
    (int, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)
)
_TAGGED = frozenset((float, bool, complex))
_FOLDED_NUMEL = 256
"""Literals up to this many elements are computed with while tracing."""


class MutatingCall(NamedTuple):
    """A call of an in-place or out= operator: arguments as given, as Specs, as Values."""

    func: Any
    facts: OperatorFacts
    args: Any
    kwargs: Any
    rule_args: Any
    rule_kwargs: Any
    values: Any
    value_kwargs: Any


class Tracer(TorchDispatchMode):
    """A dispatch mode that traces.  One thread uses it; any number may exist.

    `env` owns symbolic sizes, `record` says whether to write nodes, `device` is the device that the
    program mainly runs on: what C++ composites create on "meta" lands there. `where` is the user's
    line that new nodes are to name.
    """

    def __init__(
        self,
        env: ExprEnv | None = None,
        record: bool = True,
        device: torch.device | str = "cpu",
        where: str = "",
        unbacked: bool = False,
    ) -> None:
        super().__init__()
        self.env = env
        self.record = record
        self.unbacked = unbacked
        """Whether numbers that are in tensors become unbacked symbols of `env`."""
        self.device = torch.device(device)
        if self.device.type == "cuda" and self.device.index is None:
            self.device = torch.device("cuda", 0)
        self.where = where
        self.inputs: list[Value] = []
        self.nodes: list[Node] = []
        self.constants: dict[Value, torch.Tensor] = {}
        self.observed_is_compiling = False
        """Whether the program knows that it is compiled, so eager may take another path."""
        self.known_masks: dict[Value, Mask | None] = {}
        """What masks of attention say (`known_masks.py`)."""
        self._fake_constants: dict[int, tuple[torch.Tensor, FakeTensor]] = {}
        """By id of the real tensor, which is kept alive so that the id stays its own."""
        self._named = 0
        self._has_literals = False
        self._entered: list[Any] = []
        """For each entry of the mode its kind, and the context that it set up."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Otherwise torch wraps __torch_dispatch__ in a function that imports torch._dynamo at the
        # first operator.
        return False

    @classmethod
    def is_infra_mode(cls) -> bool:
        """True: torch treats the mode as part of its own machinery."""
        return True

    def __enter__(self) -> Tracer:
        plans = None
        if self.env is not None and sharding.plans_shardings():
            plans = sharding.planned_by(self)
            plans.__enter__()
        key = None
        if plans is not None or self.device.type != "cpu":
            # As this kind of mode, calls such as torch.arange(device="cuda") arrive here before
            # torch initialises CUDA.
            key = self._mode_key = sharding.FAKES
        else:
            vars(self).pop("_mode_key", None)
        self._entered.append((key, plans))
        # The inherited methods keep process-global flags, which threads would tread on.
        _push_mode(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        key, plans = self._entered.pop()
        _pop_mode(key)
        if plans is not None:
            plans.__exit__(None, None, None)

    # Inputs and constants

    def fake(
        self,
        spec: Spec,
        *,
        requires_grad: bool = False,
        name: str | None = None,
        like: FakeTensor | None = None,
    ) -> FakeTensor:
        """A new input of the graph; one that shares the memory of `like` if that is given."""
        fake = make_fake(
            spec,
            StorageRecord() if like is None else like.storage_record,
            requires_grad=requires_grad,
        )
        return self.adopt(fake, name)

    def adopt(self, fake: FakeTensor, name: str | None = None) -> FakeTensor:
        """Make an existing fake tensor (`fake_like`) an input of this trace."""
        number = "" if name is None else name.rpartition("_")[2]
        if number.isdecimal():  # no later name is this one
            self._named = max(self._named, int(number))
        fake.value = Value(name or self._name("arg"), fake.spec)
        self.inputs.append(fake.value)
        return fake

    def constant(self, real: torch.Tensor) -> FakeTensor:
        """The one FakeTensor that stands for a real tensor met while tracing."""
        known = self._fake_constants.get(id(real))
        if known is not None:
            return known[1]
        if real.layout is not torch.strided:
            raise Unsupported(f"a constant of layout {real.layout} entered the trace")
        if real.is_meta and self.device.type != "meta":
            # C++ made it beside a fake of a GPU, and has lost what it held.
            raise Unsupported("a tensor that C++ made of Python numbers has lost its contents")
        storage = StorageRecord(given=True)
        fake = make_fake(spec_of(real), storage, requires_grad=real.requires_grad)
        fake.value = Value(self._name("constant"), fake.spec)
        self.constants[fake.value] = real
        self._fake_constants[id(real)] = (real, fake)
        return fake

    def _name(self, stem: str) -> str:
        self._named += 1
        return f"{stem}_{self._named}"

    # Dispatch

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if left_to_subclass(types):
            return NotImplemented
        facts = operator_facts.facts(func)
        if facts.special is not None:
            answer = _SPECIAL[facts.special](self, func, args, kwargs or {})
            if answer is not _GO_ON:
                return answer
        if facts.composed:
            with _as_called(args, kwargs), self:
                return func._op_dk(operator_facts.COMPOSED, *args, **(kwargs or {}))
        key: list[Any] = [func]
        rule_args, values = self._take_all(args, key)
        if kwargs:
            rule_kwargs, value_kwargs = self._take_kwargs(kwargs, key)
        else:
            rule_kwargs, value_kwargs = {}, {}
        if facts.copies_any_geometry:
            self._check_window(args, kwargs or {}, rule_args, rule_kwargs)
        if facts.mutated:
            return self._mutate(
                MutatingCall(
                    func, facts, args, kwargs or {}, rule_args, rule_kwargs, values, value_kwargs
                )
            )
        result = self._infer(tuple(key), func, rule_args, rule_kwargs)
        if type(result) is Spec:
            fake = self._output(result, facts, 0, args, kwargs)
            if self._has_literals or (args and type(args[0]) in _NUMBERS):
                fake.literal = _fold(func, facts, args, kwargs)
            if self.record:
                self._named = named = self._named + 1
                node = Node(func, values, value_kwargs, (), self.where)
                fake.value = value = Value(f"{facts.stem}_{named}", result, node)
                node.outputs = (value,)
                self.nodes.append(node)
            return fake
        return self._many(func, facts, result, args, kwargs, values, value_kwargs)

    def _check_window(self, args: Any, kwargs: Any, rule_args: Any, rule_kwargs: Any) -> None:
        """Raise eager's error where a copied window of any geometry lies beyond its memory."""
        source = args[0] if args else kwargs.get("self")
        if not isinstance(source, FakeTensor):
            source = self.constant(source) if isinstance(source, torch.Tensor) else None
        if source is not None:
            geometry = {name: value for name, value in rule_kwargs.items() if name != "out"}
            window = infer(torch.ops.aten.as_strided.default, rule_args, geometry)
            require_inside(window, source.storage_record)

    def _infer(
        self, key: tuple[Any, ...], func: Any, rule_args: Any, rule_kwargs: dict[str, Any]
    ) -> Any:
        """The results by the operator's rule; data-dependent sizes get new symbols each time."""
        if self.unbacked:
            rule = UNBACKED_RULES.get(func)
            if rule is not None and self.env is not None:
                result = rule(self.env, *rule_args, **rule_kwargs)
                if result is not NotImplemented:
                    return result
        return infer_keyed(key, func, rule_args, rule_kwargs)

    def _many(
        self,
        func: Any,
        facts: OperatorFacts,
        result: Any,
        args: Any,
        kwargs: Any,
        values: Any,
        value_kwargs: Any,
    ) -> Any:
        """Wrap and record a tuple or list of results."""
        if not isinstance(result, (tuple, list)):
            if self.record and operator_facts.is_check(func):
                self.nodes.append(Node(func, values, value_kwargs, (), self.where))
            # Else a question about the arguments that needs no data (`aten.is_pinned`), and leaves
            # no node.
            return to_symbolic(result)
        items: list[Any] = []
        outputs: list[Value | None] = []
        node = Node(func, values, value_kwargs, (), self.where)
        for index, spec in enumerate(result):
            value = None
            if isinstance(spec, Spec):
                fake = self._output(spec, facts, index, args, kwargs)
                fake.chain = ONE_OF_SEVERAL
                if self.record:
                    fake.value = value = Value(self._name(facts.stem), spec, node)
                items.append(fake)
            else:
                # An undefined tensor (None), or a size that the operator returns, which stands in
                # the graph as such.
                items.append(to_symbolic(spec))
            outputs.append(value)
        if self.record:
            node.outputs = tuple(outputs)
            self.nodes.append(node)
        return items if facts.returns_list else tuple(items)

    def _output(
        self, spec: Spec, facts: OperatorFacts, index: int, args: Any, kwargs: Any
    ) -> FakeTensor:
        """The FakeTensor of result `index`, over the memory that the operator's schema says."""
        if not facts.view:
            return make_fake(spec, StorageRecord())
        source = facts.source(index, args, kwargs)
        if not isinstance(source, FakeTensor):
            source = self.constant(source) if isinstance(source, torch.Tensor) else None
        if source is None:
            return make_fake(spec, StorageRecord())
        if facts.any_geometry:
            require_inside(spec, source.storage_record)
        fake = make_fake(spec, source.storage_record, inference=source.is_inference())
        fake.chain = source.chain + 1
        if source.no_grad_view or not torch.is_grad_enabled():
            fake.no_grad_view = True
        if facts.lazy or source.is_conj() or source.is_neg():
            if facts.any_geometry:
                raise Unsupported(f"{facts.op} of a lazily conjugated or negated tensor")
            carry_lazy_bits(source, fake, facts.lazy)
        return fake

    def _mutate(self, call: MutatingCall) -> Any:
        """An in-place or out= operator: its results are its arguments, rarely new tensors too."""
        facts, args, kwargs = call.facts, call.args, call.kwargs
        if facts.changes_metadata:
            return self._change_metadata(call)
        value_kwargs = call.value_kwargs
        if facts.out:
            value_kwargs = self._prepare_out(call)
        else:
            facts.check_mutation(call.rule_args, call.rule_kwargs)
        if facts.checks_overlap:
            self._check_overlap(args)
        fresh: Any = None
        if None in facts.aliases:
            fresh = infer(call.func, call.rule_args, call.rule_kwargs)
            fresh = fresh if isinstance(fresh, (tuple, list)) else (fresh,)
        node = Node(call.func, call.values, value_kwargs, (), self.where)
        items: list[Any] = []
        outputs: list[Value | None] = []
        for index, name in enumerate(facts.aliases):
            item = facts.argument(name, args, kwargs) if name is not None else None
            if item is None and fresh is not None and isinstance(fresh[index], Spec):
                item = make_fake(fresh[index], StorageRecord())
                if self.record:
                    item.value = Value(self._name(facts.stem), item.spec, node)
            items.append(item)
            outputs.append(self._wrapped(item).value if isinstance(item, torch.Tensor) else None)
        for written in facts.written(args, kwargs):
            self._wrapped(written).storage_record.written()
        if facts.counted_lists:
            for written in facts.written(args, kwargs, facts.counted_lists):
                if isinstance(written, FakeTensor) and not written.is_inference():
                    torch.autograd.graph.increment_version(written)
        if self.record:
            node.outputs = tuple(outputs)
            self.nodes.append(node)
        if not items:
            return None
        return items[0] if len(items) == 1 else tuple(items)

    def _prepare_out(self, call: MutatingCall) -> Any:
        """Give out= tensors the results' shapes; returns the kwargs with their new Values."""
        facts, kwargs = call.facts, call.kwargs
        results = facts.out_results(call.rule_args, call.rule_kwargs)
        if results is None:
            return call.value_kwargs
        outs = [kwargs[name] for name in facts.mutated]
        others = {name: arg for name, arg in kwargs.items() if name not in facts.mutated}
        for fake, spec in to_resize(call.func, outs, results, [call.args, others]):
            fake.storage_record = StorageRecord()
            fake.storage_record.first = spec
            set_geometry(fake, spec)
            fake.spec = spec
            if self.record:
                options = {"dtype": spec.dtype, "device": spec.device}
                node = Node(
                    aten.empty.memory_format, (list(spec.shape),), options, (), self.where
                )  # fmt: skip
                fake.value = Value(self._name("resized"), spec, node)
                node.outputs = (fake.value,)
                self.nodes.append(node)
        return self._take_kwargs(kwargs, [])[1]

    @staticmethod
    def _check_overlap(args: Any) -> None:
        target = args[0]
        if isinstance(target, FakeTensor):
            for operand in args[1:]:
                if (
                    isinstance(operand, FakeTensor)
                    and operand is not target
                    and operand.storage_record is target.storage_record
                ):
                    operator_facts.check_overlap(target.spec, operand.spec)

    def _change_metadata(self, call: MutatingCall) -> Any:
        """`x.squeeze_()` and the like: recorded as views; refused if x exists outside the graph."""
        func, facts, fake = call.func, call.facts, call.args[0]
        form = facts.view_form
        if form is None or not isinstance(fake, FakeTensor):
            raise MetadataMutation(f"{func} changes the sizes or strides of its argument", func)
        spec = infer(form, call.rule_args, call.rule_kwargs)
        if facts.any_geometry:
            require_inside(spec, fake.storage_record)
        if spec is not fake.spec:
            if fake.value is not None and fake.value.producer is None:
                raise MetadataMutation(
                    f"{func} changes the sizes or strides of {fake!r}, which the graph "
                    f"does not own",
                    func,
                )
            set_geometry(fake, spec)
        if self.record:
            node = Node(form, call.values, call.value_kwargs, (), self.where)
            fake.value = Value(self._name(facts.stem), spec, node)
            node.outputs = (fake.value,)
            self.nodes.append(node)
        return fake

    def _wrapped(self, tensor: torch.Tensor) -> FakeTensor:
        return tensor if isinstance(tensor, FakeTensor) else self.constant(tensor)

    # Arguments: each is taken apart three ways, into what the rule sees, what the node says, and
    # the cache key

    def _take_all(self, args: Any, key: list[Any]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        rule_args: list[Any] = []
        values: list[Any] = []
        for arg in args:
            kind = type(arg)
            if kind is FakeTensor:
                spec = arg.spec
                rule_args.append(spec)
                values.append(arg.value)
                key.append(spec)
            elif kind in _PLAIN:
                rule_args.append(arg)
                values.append(arg)
                key.append(arg)
            else:
                rule_arg, value = self._take(arg, key)
                rule_args.append(rule_arg)
                values.append(value)
        return tuple(rule_args), tuple(values)

    def _take(self, arg: Any, key: list[Any]) -> tuple[Any, Any]:
        """An argument of any kind but the two that `_take_all` handles itself."""
        kind = type(arg)
        if kind is list or isinstance(arg, tuple):
            key.append(tuple)
            key.append(len(arg))
            rule_items, values = self._take_all(arg, key)
            return rule_items, (list(values) if kind is list else values)
        if kind in _TAGGED:
            key.append(kind)
            key.append(arg)
            return arg, arg
        if isinstance(arg, _SYMBOLIC):
            inner = from_symbolic(arg)
            key.append(inner)
            return inner, inner
        if isinstance(arg, torch.Tensor):
            fake = arg if isinstance(arg, FakeTensor) else self.constant(arg)
            key.append(fake.spec)
            return fake.spec, fake.value
        key.append(arg)
        return arg, arg

    def item(self, tensor: FakeTensor) -> Any:
        """The element of a tensor of one element, as a new unbacked number."""
        assert self.env is not None
        number = new_number(self.env, tensor.spec.dtype)
        if self.record:
            raise Unsupported(f"{number} of a tensor in a recorded trace")
        return to_symbolic(number)

    def _take_kwargs(
        self, kwargs: dict[str, Any], key: list[Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        if self.device.type != "cpu":
            device = kwargs.get("device")
            if device is not None and (
                device.type == "meta" or (device.index is None and device.type == self.device.type)
            ):
                kwargs = {**kwargs, "device": self.device}
        key.append(dict)
        key.extend(kwargs)
        rule_items, values = self._take_all(kwargs.values(), key)
        return dict(zip(kwargs, rule_items, strict=True)), dict(zip(kwargs, values, strict=True))


def left_to_subclass(types: Any) -> bool:
    """Whether a class among those of a call's arguments answers the call, on inner fakes."""
    return any(kind is not FakeTensor and is_wrapper_subclass(kind) for kind in types)


def is_recording() -> bool:
    """Whether the innermost dispatch mode is a Tracer that writes nodes."""
    mode = _get_current_dispatch_mode()
    return isinstance(mode, Tracer) and mode.record


def _before_dispatch() -> AbstractContextManager[Any]:
    """The state of the dispatcher when the operator that is being answered was called."""
    state: AbstractContextManager[Any] = torch._C._RestorePythonTLSSnapshot()  # type: ignore[attr-defined]
    return state


def _as_called(args: Any, kwargs: Any) -> AbstractContextManager[Any]:
    """The dispatch state in which the program called an operator: autocast applies to its parts.

    What has come here whole for another cause than inference mode was called by the handler of a
    wrapper subclass, to which neither autograd nor autocast applies.
    """
    tensors = (leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor))
    if torch.is_inference_mode_enabled() or any(tensor.is_inference() for tensor in tensors):
        return _before_dispatch()
    return contextlib.nullcontext()


# Operators that are answered without a rule

_GO_ON = object()


def _contents(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """`.item()` and the like: folds on literals."""
    if tracer.unbacked and func in UNBACKED_RULES:
        return _GO_ON
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    reals = [t.contents if isinstance(t, FakeTensor) else None for t in tensors]
    if None in reals:
        if tracer.unbacked and tracer.env is not None and func is aten._local_scalar_dense.default:
            return tracer.item(args[0])
        subject = next(
            (repr(t) for t, real in zip(tensors, reals, strict=True) if real is None), "a tensor"
        )
        raise DataDependent(f"{func} needs the contents of {subject}", func)
    remaining = iter(reals)
    return func(
        *[next(remaining) if isinstance(arg, torch.Tensor) else arg for arg in args], **kwargs
    )


def _lift_fresh(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """A literal: its contents are known until the program writes to it."""
    (real,) = args
    if isinstance(real, FakeTensor):
        return real
    fake = tracer.constant(real)
    fake.literal = real
    tracer._has_literals = True
    return fake


def _copy_of_number(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """`_to_copy` of a Python number, as vmap converts one: a tensor with this number, made in the
    graph. As a constant of the graph it would be read from the CPU in each call.
    """
    if isinstance(args[0], torch.Tensor):
        return _GO_ON
    kept = {name: kwargs[name] for name in ("dtype", "device") if kwargs.get(name) is not None}
    if "dtype" not in kept:
        kept["dtype"] = torch.result_type(torch.empty(0, dtype=torch.bool), args[0])
    return tracer.__torch_dispatch__(aten.scalar_tensor.default, (), (args[0],), kept)


_NUMBERS = frozenset({int, float, bool})


@per_operator
def _takes_tensor(func: Any) -> bool:
    """Whether an operator's first argument is a tensor."""
    return isinstance(func._schema.arguments[0].type, torch.TensorType)


def _fold(func: Any, facts: OperatorFacts, args: Any, kwargs: Any) -> torch.Tensor | None:
    """The contents of a result that is computed from small literals only, else None."""
    if facts.random or not args:
        return None
    real_args = []
    known = False
    for arg in args:
        if isinstance(arg, torch.Tensor):
            contents = arg.contents if type(arg) is FakeTensor else None
            if contents is None or contents.numel() > _FOLDED_NUMEL:
                return None
            known = True
            arg = contents
        elif isinstance(arg, _SYMBOLIC) or (
            isinstance(arg, (list, tuple)) and not all(type(item) is int for item in arg)
        ):
            return None
        real_args.append(arg)
    if not known and type(args[0]) in _NUMBERS:
        known = _takes_tensor(func)  # torch.div(7, 2): numbers for tensors
        real_args = [torch.tensor(arg) if type(arg) in _NUMBERS else arg for arg in real_args]
    if not known or (
        kwargs and any(isinstance(arg, (torch.Tensor, *_SYMBOLIC)) for arg in kwargs.values())
    ):
        return None
    if kwargs and kwargs.get("device") is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    with torch.no_grad():
        return func(*real_args, **(kwargs or {}))


def _sizes(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """C++ that asks for concrete geometry gets it, and the sizes are specialised."""
    tensor = args[0]
    spec = tensor.spec if isinstance(tensor, FakeTensor) else _spec_of_wrapper(tensor)
    if func is aten.size.default:
        return [as_int(size) for size in spec.shape]
    if func is aten.stride.default:
        return [as_int(size) for size in spec.stride]
    if func is aten.sym_size.default:
        return [to_symint(size) for size in spec.shape]
    if func is aten.sym_stride.default:
        return [to_symint(size) for size in spec.stride]
    if func in (aten.storage_offset.default, aten.sym_storage_offset.default):
        return to_symint(spec.offset)
    return to_symint(spec.numel)


def _spec_of_wrapper(tensor: torch.Tensor) -> Spec:
    """The Spec of what torch's C++ has wrapped around a fake tensor (torch.func's levels)."""
    return Spec.of(
        tuple(map(from_symint, tensor.shape)),
        stride=tuple(map(from_symint, tensor.stride())),
        dtype=tensor.dtype,
        device=tensor.device,
        offset=from_symint(tensor.storage_offset()),
    )


def _step(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> None:
    """The step of a fused optimizer, as calls of other operators."""
    step = fused_step(func)
    assert step is not None
    with torch.no_grad(), tracer:
        step(*args, **kwargs)


def _layer(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """A kernel that calls operators to which autocast applies: a graph calls it without."""
    with _before_dispatch():
        casts = torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")
    if casts:
        raise Unsupported(f"{func} under autocast, which applies to a part of it only")
    return _GO_ON


def _tangent_of_number(tracer: Tracer, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """The zero that stands for the tangent of a number is a real tensor, as the number's is: C++
    reads it.
    """
    is_number = not args[0] and torch.device(kwargs.get("device") or "cpu").type == "cpu"
    return torch.zeros((), dtype=kwargs.get("dtype")) if is_number else _GO_ON


_SPECIAL = {
    "number": _copy_of_number, "contents": _contents, "lift": _lift_fresh, "sizes": _sizes,
    "step": _step, "layer": _layer, "zero": _tangent_of_number,
}  # fmt: skip
