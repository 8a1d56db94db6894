"""Guards on constants, tensors and torch's state; C and the Python reference agree."""

from __future__ import annotations

import collections
import random
import subprocess
import sys
from typing import Any

import pytest
import torch
from guard_verdicts import Thing, X, Y, function, slotted, tensor_guard, verdict

from flambeau_capture import sources
from flambeau_capture.core import core
from flambeau_capture.entries.new_entry import current_state
from flambeau_capture.events import failure_of
from flambeau_capture.guards import constants, kinds, program, tensor_layout
from flambeau_capture.record import Guard
from flambeau_capture.sources import (
    Argument,
    Attribute,
    CallOf,
    CellContents,
    Closure,
    Constant,
    DictEntry,
    DictKeyAt,
    FunctionField,
    GradOf,
    InstanceDict,
    Item,
    MethodPart,
    Scope,
    TensorSize,
    TensorStride,
    TypeAttribute,
    TypeOf,
    WeakrefTo,
)
from flambeau_prims.size_text import read_condition
from flambeau_prims.sizes import SizeEnv
from flambeau_prims.spec import Spec


def test_the_c_core_reads_tensors_here():
    assert core is not None, "build it: python hatch_build.py --inplace"
    assert tensor_layout.configure()


FIRST_CAPTURE = """
import torch

import flambeau_capture
from flambeau_capture.guards.tensor_layout import configure

x = torch.randn(3, 5, 7)
options = flambeau_capture.CaptureOptions(dynamic=True, fullgraph=True)
with {mode}:
    compiled = flambeau_capture.compile(
        lambda x: x.tanh(), backend=lambda gm, inputs: gm.forward, options=options
    )
    compiled(x)
    assert configure()
assert [event.kind for event in flambeau_capture.state_of(compiled).events] == ["capture"]
"""


@pytest.mark.parametrize(
    "mode",
    [
        "torch.inference_mode()",
        "torch.device('meta')",
        "torch.autocast('cpu', torch.bfloat16)",
        "torch.no_grad()",
    ],
)
def test_a_first_capture_in_any_mode(mode):
    code = FIRST_CAPTURE.format(mode=mode)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert not done.returncode, done.stderr


WITHOUT_LAYOUT = """
from flambeau_capture.guards import tensor_layout

def find_layout(c10):
    raise LookupError

tensor_layout.find_layout = find_layout
"""


def test_relations_hold_where_c_does_not_read_tensors():
    code = WITHOUT_LAYOUT + FIRST_CAPTURE.format(mode="torch.no_grad()")
    code = code.replace("assert configure()", "assert not configure()")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert not done.returncode, done.stderr


# ---------------------------------------------------------------- constants

CONSTANTS = [
    0,
    1,
    -1,
    True,
    False,
    1.0,
    0.0,
    -0.0,
    float("nan"),
    float("inf"),
    1j,
    complex(0.0, -0.0),
    "a",
    "b",
    b"a",
    None,
    ...,
    2**70,
    (),
    (1,),
    (True,),
    (1.0,),
    (1, (2, "x")),
    (1, (2, b"x")),
    torch.float32,
    torch.float64,
    torch.device("cpu"),
    torch.device("meta"),
    torch.strided,
    torch.contiguous_format,
    torch.Size([1]),
    slice(1, None),
    slice(True, None),
    range(3),
    range(4),
    frozenset({1}),
]


@pytest.mark.parametrize("expected", CONSTANTS, ids=repr)
def test_equals_is_exact_in_type_and_bits(expected):
    guards = [kinds.prepared(Guard("EQUALS", X, expected))]
    import copy

    assert verdict(guards, (copy.copy(expected),)) is None
    for other in CONSTANTS:
        if other is not expected:
            assert verdict(guards, (other,)) == 0, (expected, other)


def test_equals_runs_no_user_code():
    class Hostile(int):
        def __eq__(self, other):
            raise AssertionError("a guard ran user code")

        __hash__ = int.__hash__

    assert verdict([kinds.prepared(Guard("EQUALS", X, 1))], (Hostile(1),)) == 0
    assert verdict([kinds.prepared(Guard("EQUALS", X, (1, 2)))], ((Hostile(1), 2),)) == 0
    with pytest.raises(TypeError):
        kinds.prepared(Guard("EQUALS", X, [1]))


# ---------------------------------------------------------------- tensors


def tensors() -> list[torch.Tensor]:
    base = torch.arange(24.0).reshape(2, 3, 4)
    with torch.inference_mode():
        inference = torch.zeros(2, 3)
    made = [
        torch.zeros(shape)
        for shape in (
            (),
            (1,),
            (0,),
            (2, 3),
            (3, 2),
            (2, 3, 4),
            (1, 2, 1, 2, 1, 2, 1),
            (0, 3),
            (2, 1, 3),
        )
    ]
    made += [
        torch.zeros(2, 3, dtype=dtype)
        for dtype in (torch.float64, torch.int64, torch.bool, torch.bfloat16, torch.complex64)
    ]
    made += [
        base.transpose(0, 2),
        base[:, ::2],
        base[1],
        base.expand(2, 3, 4),
        torch.zeros(1).expand(2, 3),
        torch.zeros(3, 2).t(),
    ]
    made += [
        torch.zeros(2, 3, device="meta"),
        torch.zeros(2, 3, requires_grad=True),
        torch.nn.Parameter(torch.zeros(2, 3)),
    ]
    made += [
        torch.nn.Parameter(torch.zeros(2, 3), requires_grad=False),
        inference,
        torch.zeros(2, 3, dtype=torch.complex64).conj(),
    ]
    return made


def same_facts(a: torch.Tensor, b: torch.Tensor) -> bool:
    def facts(t):
        keys = torch._C._dispatch_keys(t).raw_repr()
        return type(t), t.shape, t.stride(), t.dtype, t.device, t.requires_grad, keys

    return facts(a) == facts(b)


def test_every_tensor_matches_its_own_facts_only():
    for guarded in tensors():
        guards = [kinds.prepared(tensor_guard(X, guarded))]
        assert kinds.guard_text(guards[0])
        for other in (*tensors(), None, 3, "x", [guarded]):
            same = isinstance(other, torch.Tensor) and same_facts(guarded, other)
            assert (verdict(guards, (other,)) is None) == same, (guarded, other)


def test_tensor_changes_in_place_are_seen():
    tensor = torch.zeros(2, 3)
    guards = [kinds.prepared(tensor_guard(X, tensor))]
    assert verdict(guards, (tensor,)) is None
    tensor.requires_grad_()
    assert verdict(guards, (tensor,)) == 0
    tensor.requires_grad_(False)
    assert verdict(guards, (tensor,)) is None
    tensor.data = torch.zeros(3, 3)
    assert verdict(guards, (tensor,)) == 0
    tensor.data = torch.ones(2, 3)
    assert verdict(guards, (tensor,)) is None
    tensor.resize_(6)
    assert verdict(guards, (tensor,)) == 0


def test_symbolic_sizes_and_relations():
    env = SizeEnv()
    rows, columns = env.symbol(4, source="rows"), env.symbol(6, source="columns")
    spec = Spec.of((rows, columns), dtype=torch.float32)
    names = {"s0": TensorSize(X, 0), "s1": TensorSize(X, 1), "n": Y, "stride": TensorStride(X, 0)}

    exprs = {"s0": rows, "s1": columns, **{n: env.symbol(4, n, name=n) for n in ("n", "stride")}}

    def relation(text):
        condition = read_condition(text, exprs)
        used = {name: names[name] for name in sorted(condition.symbols())}
        return Guard("RELATION", X, constants.Relation(condition, used))

    guards = [
        tensor_guard(X, torch.zeros(4, 6), spec),
        Guard("INT", Y),
        relation("s1 == 6 or s0 * 2 <= n"),
        relation("stride == s1"),
    ]
    guards = [kinds.prepared(guard) for guard in guards]
    assert "L['x'].size(0)" in kinds.guard_text(guards[2])
    assert verdict(guards, (torch.zeros(4, 6), 0)) is None
    assert verdict(guards, (torch.zeros(5, 7), 10)) is None
    assert verdict(guards, (torch.zeros(5, 7), 9)) == 2
    assert verdict(guards, (torch.zeros(5, 9)[:, :7], 14)) == 3
    assert verdict(guards, (torch.zeros(5, 7), True)) == 1
    assert verdict(guards, (torch.zeros(5, 7), 2**63)) == 1
    assert verdict(guards, (torch.zeros(5), 9)) == 0
    assert verdict([kinds.prepared(relation("s0 ** 0.5 < n"))], (torch.zeros(9, 1), 4)) is None
    assert verdict([kinds.prepared(relation("s0 ** 0.5 < n"))], (torch.zeros(9, 1), 3)) == 0


def test_shared_memory_of_written_inputs():
    a, b = torch.zeros(4), torch.zeros(4)
    guards = [kinds.prepared(Guard("DISTINCT_MEMORY", X, ((X,), (Y,))))]
    assert verdict(guards, (a, b)) is None
    assert verdict(guards, (a, a)) == 0
    assert verdict(guards, (a, a[2:])) == 0
    assert verdict(guards, (a, 3)) == 0
    both_written = [kinds.prepared(Guard("DISTINCT_MEMORY", X, ((X, Y), ())))]
    assert verdict(both_written, (a, b)) is None
    assert verdict(both_written, (a, a.view(2, 2))) == 0
    unwritten = [Argument(str(at), at) for at in range(1, 700)]
    many = [kinds.prepared(Guard("DISTINCT_MEMORY", X, ((X,), tuple(unwritten))))]
    assert verdict(many, (a, *[b] * 699)) is None
    assert verdict(many, (a, *[b] * 698, a[1:])) == 0


# ---------------------------------------------------------------- torch's state and aliasing


def test_torch_state():
    guards = [kinds.prepared(Guard("TORCH_STATE", Constant(torch), current_state()))]
    modes = {
        "no_grad": torch.no_grad(),
        "inference": torch.inference_mode(),
        "autocast": torch.autocast("cpu", dtype=torch.bfloat16),
        "function mode": torch.overrides.BaseTorchFunctionMode(),
        "device": torch.device("meta"),
        "dispatch mode": torch.utils._python_dispatch.BaseTorchDispatchMode(),
        "forward mode": torch.autograd.forward_ad.dual_level(),
    }
    for name, mode in modes.items():
        assert verdict(guards, (1,)) is None
        with mode:
            assert verdict(guards, (1,)) == 0, name
    seen = []
    torch.vmap(lambda x: (seen.append(verdict(guards, (1,))), x)[1])(torch.zeros(2))
    assert seen == [0]
    torch.set_default_dtype(torch.float64)
    try:
        assert verdict(guards, (1,)) == 0
        failure = failure_of(guards, Scope(function, (1,)))
        assert "default_dtype is torch.float64, was torch.float32" in failure.text
    finally:
        torch.set_default_dtype(torch.float32)
    assert verdict(guards, (1,)) is None


def test_extra_torch_state():
    guards = [kinds.prepared(Guard("STATE", Constant(torch), ("deterministic_algorithms", False)))]
    assert verdict(guards, (1,)) is None
    torch.use_deterministic_algorithms(True)
    try:
        assert verdict(guards, (1,)) == 0
    finally:
        torch.use_deterministic_algorithms(False)
    with pytest.raises(KeyError):
        kinds.prepared(Guard("STATE", Constant(torch), ("nothing", 1)))


def test_aliases():
    same = [kinds.prepared(Guard("ALIAS", X, Y))]
    differ = [kinds.prepared(Guard("NOT_ALIAS", X, Y))]
    a, b = [], []
    assert verdict(same, (a, a)) is None and verdict(same, (a, b)) == 0
    assert verdict(differ, (a, b)) is None and verdict(differ, (a, a)) == 0


def test_gradients_and_sizes_as_objects():
    x = torch.ones(3, requires_grad=True)
    guards = [
        kinds.prepared(guard)
        for guard in (Guard("IS", GradOf(X), None), Guard("EQUALS", TensorSize(X, 0), 3))
    ]
    assert verdict(guards, (x,)) is None
    assert verdict(guards, (torch.ones(4),)) == 1
    x.sum().backward()
    assert verdict(guards, (x,)) == 0


def test_empty_cells():
    def make():
        def closed(x):
            return later

        yield closed
        later = 1
        yield closed

    maker = make()
    closed = next(maker)
    guards = [kinds.prepared(Guard("CELL_EMPTY", Closure("later", 0)))]
    assert verdict(guards, (1,), closed) is None
    next(maker)
    assert verdict(guards, (1,), closed) == 0


# ---------------------------------------------------------------- robustness


def test_loads_survive_values_of_every_type():
    """No load or check may crash, whatever stands where something else was."""
    values = [
        None,
        1,
        True,
        "text",
        b"x",
        (1, 2),
        [1],
        {"a": 1},
        {1},
        Thing(),
        slotted(),
        Thing,
        torch,
        function,
        Thing().method,
        torch.ones(2),
        object(),
        1.5,
        slice(1),
        lambda: 0,
    ]
    all_sources = [
        InstanceDict(X),
        DictEntry(X, "a"),
        DictKeyAt(X, 0),
        Item(X, 1),
        TypeOf(X),
        TypeAttribute(X, "method"),
        FunctionField(X, "code"),
        FunctionField(X, "closure"),
        MethodPart(X, "self"),
        CellContents(X),
        Attribute(X, "value"),
        GradOf(X),
        CallOf(len, (X,)),
        TensorSize(X, 0),
        TensorStride(X, 3),
        DictEntry(InstanceDict(X), "value"),
        Item(FunctionField(X, "closure"), 0),
    ]
    checks = [
        ("IS", None),
        ("EQUALS", 1),
        ("TYPE", int),
        ("LENGTH", 1),
        ("KEYS", ("a",)),
        ("HAS_KEY", "a"),
        ("ABSENT", "a"),
        ("CELL_EMPTY", None),
    ]
    agreed = 0
    for source in (X, *all_sources):
        for kind, payload in checks:
            guards = [kinds.prepared(Guard(kind, source, payload))]
            for value in values:
                verdict(guards, (value,))
                agreed += 1
    assert agreed > 1000


@pytest.mark.skipif(core is None, reason="the C core is not built")
def test_malformed_programs_are_refused():
    code = core.operations()
    argument = (code["ARGUMENT"], 1, 0, 0, 0, None)

    def make(*ops, inputs=(), registers=3, symbols=1):
        return core.GuardProgram(
            ops=ops, inputs=inputs, arguments=1, registers=registers, symbols=symbols
        )

    make(argument)
    for bad in (
        [(code["ARGUMENT"], 1, 0, 0, 1, None)],
        [(code["ARGUMENT"], 3, 0, 0, 0, None)],
        [(code["IS"], 0, 1, 0, 0, None)],
        [argument, argument],
        [(999, 0, 0, 0, 0, None)],
        [argument, (code["RELATION"], 0, 0, 0, 0, (code["R_ADD"],))],
        [argument, (code["RELATION"], 0, 0, 0, 0, (code["R_SYMBOL"], 5))],
        [argument, (code["DISTINCT_MEMORY"], 0, 0, 0, 1, (2,))],
        [argument, (code["FUNCTION_FIELD"], 2, 1, 0, 7, None)],
        [argument, (code["CALL"], 2, 0, 0, 0, (len, (2,)))],
    ):
        with pytest.raises(ValueError):
            make(*bad)
    for bad in (
        (code["WEAK_IS"], 0, 1, 0, 0, 3),
        (code["KEYS"], 0, 1, 0, 0, ["a"]),
        (code["GETATTR"], 2, 1, 0, 0, 3),
    ):
        with pytest.raises(TypeError):
            make(argument, bad)
    with pytest.raises(ValueError):
        make(argument, inputs=(2,))
    with pytest.raises(ValueError):
        make(argument).failed(function, (1, 2))


def test_sources_are_interned():
    assert DictEntry(InstanceDict(X), "a") is DictEntry(InstanceDict(Argument("x", 0)), "a")
    assert Constant(1) is not Constant(True) and Constant(1.0) is not Constant(1)
    key = WeakrefTo.of(thing := Thing(), "thing")
    assert key is WeakrefTo.of(thing, "thing") and key.load(Scope(function, ())) is thing
    del thing
    with pytest.raises(sources.SourceLost):
        key.load(Scope(function, ()))


def test_order_drops_repeats_and_keeps_different_payloads():
    guards = [kinds.prepared(Guard("ABSENT", X, name)) for name in ("a", "b", "a")] + [
        kinds.prepared(Guard("EQUALS", X, value)) for value in (1, True)
    ]
    assert len(program.order(guards)) == 4


# Keys of dicts by their place
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(40))
def test_a_key_at_an_index_after_deletions(seed: int) -> None:
    draw = random.Random(seed)
    table: dict[Any, int] = draw.choice([{}, collections.Counter(), collections.defaultdict(int)])
    keys = [draw.choice([object(), f"k{at}", at]) for at in range(draw.randint(1, 12))]
    table.update(dict.fromkeys(keys, 1))
    for key in draw.sample(keys, draw.randint(0, len(keys) - 1)):
        table.pop(key, None)
    table.update(dict.fromkeys(draw.sample(keys, 1), 2))
    for at in range(len(table) + 2):
        source = DictKeyAt(Argument("table", 0), at)
        found = program.guard_program((), (source,), 1).load(keyed, (table,))
        assert found == (None if at >= len(table) else (list(table)[at],))


def test_more_tensors_than_a_small_table_holds_are_told_apart() -> None:
    def many(tensors: list[torch.Tensor]) -> None: ...

    tensors = [torch.zeros(1) for _ in range(1500)]
    written = [Item(Argument("tensors", 0), at) for at in range(1200)]
    others = [Item(Argument("tensors", 0), at) for at in range(1200, 1500)]
    guard = kinds.prepared(Guard("DISTINCT_MEMORY", written[0], (tuple(written), tuple(others))))
    checked = program.guard_program((guard,), (), 1)
    assert checked.failed(many, (tensors,)) is None
    for same, other in ((3, 1400), (3, 1100), (1199, 1200)):
        aliased = list(tensors)
        aliased[other] = aliased[same].view(1)
        assert checked.failed(many, (aliased,)) == 0
    aliased = list(tensors)
    aliased[1300] = aliased[1400].view(1)
    assert checked.failed(many, (aliased,)) is None


def keyed(table: Any) -> None:
    """A function of one argument."""
