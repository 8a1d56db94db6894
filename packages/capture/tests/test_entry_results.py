"""What an entry does with a capture record: its results and its side effects."""

from __future__ import annotations

import collections
import functools
import types

import pytest
import torch
from written_captures import X, Y, backend, run, tape

from flambeau_capture.compiled import compile_callable
from flambeau_capture.record import (
    CallRecipe,
    CallSideEffect,
    Const,
    DelAttr,
    FromGraph,
    FromSource,
    MakeCell,
    MakeDict,
    MakeFunction,
    MakeList,
    MakeObject,
    MakeSet,
    MakeTuple,
    ReplaceDict,
    ReplaceList,
    ReplaceSet,
    SetAttr,
    StoreCell,
    StoreGlobal,
)
from flambeau_capture.sources import (
    Argument,
    Closure,
    DictEntry,
    InstanceDict,
    Item,
)

# ---------------------------------------------------------------- results


def test_a_graph_output_is_returned_by_the_core_itself():
    result, _, sin, entry = run()
    assert torch.equal(result, sin) and entry.info.text == ""
    graph = entry.info.graph_module.graph
    assert [node.op for node in graph.nodes] == [
        "placeholder",
        "call_function",
        "call_method",
        "output",
    ]
    assert [str(node.meta["spec"]) for node in graph.nodes] == ["f32[3, 4]"] * 3 + ["(f32[3, 4],)"]
    assert next(iter(graph.nodes)).meta["source"] == "L['x']"


def test_a_tuple_of_outputs_is_returned_by_the_core_itself():
    result, cos, sin, entry = run(result=lambda v: MakeTuple((FromGraph(v[1]), FromGraph(v[2]))))
    assert type(result) is tuple and torch.equal(result[0], cos) and torch.equal(result[1], sin)
    assert entry.info.text == ""


def test_a_backend_may_return_a_list():
    compiled = compile_callable(
        lambda x: None,
        lambda scope, *_: tape(
            scope, result=lambda v: MakeTuple((FromGraph(v[1]), FromGraph(v[2])))
        ),
        lambda gm, inputs: lambda *args: list(gm(*args)),
    )
    assert type(compiled(torch.ones(2))) is tuple
    compiled = compile_callable(
        lambda x: None, lambda scope, *_: tape(scope), lambda gm, inputs: lambda *args: gm(*args)[0]
    )
    with pytest.raises(TypeError, match="must return a tuple"):
        compiled(torch.ones(2))


class Point(collections.namedtuple("Point", "a b")):
    __slots__ = ()


class Holder:
    __hash__ = object.__hash__

    def __init__(self, *args):
        raise AssertionError("objects are rebuilt without calling user code")

    def __setattr__(self, name, value):
        raise AssertionError("objects are rebuilt without calling user code")

    def get(self):
        return self.value


class Slots:
    __slots__ = ("value",)


class MyList(list):
    pass


class MyDict(dict):
    def __setitem__(self, key, value):
        raise AssertionError("containers are rebuilt without calling user code")


def test_every_kind_of_value_is_rebuilt():
    inner = MakeList([Const(1), Const("a")])

    def everything(v):
        partial = CallRecipe(functools.partial, (Const(max), Const(3)), {"key": Const(abs)})
        holder = MakeObject(Holder, state={"value": FromGraph(v[1]), "again": inner})
        return MakeDict(
            [
                (Const("tuple"), MakeTuple((FromGraph(v[2]), inner, Const(2.5)))),
                (Const("one"), MakeTuple((Const(1),))),
                (Const("empty"), MakeTuple(())),
                (Const("named"), MakeTuple((Const(1), inner), Point)),
                (Const("struct"), MakeTuple((Const(1), Const(2)), torch.return_types.max)),
                (Const("size"), MakeTuple((Const(3), Const(4)), torch.Size)),
                (Const("dict"), MakeDict([(Const(1), inner)])),
                (
                    Const("ordered"),
                    MakeDict(
                        [(Const("b"), Const(1)), (Const("a"), Const(2))], collections.OrderedDict
                    ),
                ),
                (
                    Const("default"),
                    MakeDict(
                        [(Const("b"), Const(1))], collections.defaultdict, factory=Const(list)
                    ),
                ),
                (
                    Const("mydict"),
                    MakeDict([(Const("b"), Const(1))], MyDict, state={"extra": Const(5)}),
                ),
                (Const("mylist"), MakeList([Const(1)], MyList, state={"extra": inner})),
                (Const("set"), MakeSet([Const(1), Const(2)])),
                (Const("frozen"), MakeSet([Const(1), MakeTuple((Const(2), Const(3)))], frozenset)),
                (Const("object"), holder),
                (Const("slots"), MakeObject(Slots, slots={"value": Const(9)})),
                (Const("slice"), CallRecipe(slice, (Const(1), Const(None), Const(2)))),
                (Const("range"), CallRecipe(range, (Const(1), Const(7), Const(2)))),
                (Const("method"), CallRecipe(types.MethodType, (Const(Holder.get), holder))),
                (Const("partial"), partial),
                (Const("iterator"), CallRecipe(iter, (inner,))),
                (Const("input"), FromSource(X)),
                (Const("argument"), FromSource(Y)),
                (Const("item"), FromSource(Item(Y, 0))),
            ]
        )

    marker = ["marker"]
    result, cos, sin, _ = run((marker,), result=everything)
    assert torch.equal(result["tuple"][0], sin) and result["tuple"][1:] == ([1, "a"], 2.5)
    shared = result["tuple"][1]
    assert result["one"] == (1,) and result["empty"] == ()
    assert type(result["named"]) is Point and result["named"].b is shared
    assert result["size"] == torch.Size([3, 4]) and type(result["size"]) is torch.Size
    assert result["dict"] == {1: shared} and result["dict"][1] is shared
    assert type(result["ordered"]) is collections.OrderedDict and list(
        result["ordered"].items()
    ) == [("b", 1), ("a", 2)]
    assert result["default"].default_factory is list and result["default"] == {"b": 1}
    assert (
        type(result["mydict"]) is MyDict
        and dict(result["mydict"]) == {"b": 1}
        and result["mydict"].extra == 5
    )
    assert (
        type(result["mylist"]) is MyList
        and result["mylist"] == [1]
        and result["mylist"].extra is shared
    )
    assert result["set"] == {1, 2} and result["frozen"] == frozenset({1, (2, 3)})
    assert (
        type(result["object"]) is Holder
        and torch.equal(result["object"].value, cos)
        and result["object"].again is shared
    )
    assert result["slots"].value == 9 and result["struct"].indices == 2
    assert result["slice"] == slice(1, None, 2) and result["range"] == range(1, 7, 2)
    assert result["method"]() is result["object"].value
    assert result["partial"](-4) == -4
    assert list(result["iterator"]) == [1, "a"]
    assert result["argument"] is marker and result["item"] == "marker"
    assert type(result["input"]) is torch.Tensor


def test_cycles_are_rebuilt():
    def cyclic(v):
        head = MakeList()
        pair = MakeTuple((head, FromGraph(v[2])))
        table = MakeDict([(Const("pair"), pair)])
        cell = MakeCell()
        made = MakeFunction((lambda: cell_value).__code__, {}, "f", "g.f", closure=(cell,))
        cell.contents = made
        head.items += [pair, table, head, MakeObject(Holder, state={"table": table}), made]
        return pair

    cell_value = 0
    pair, _, sin, _ = run(result=cyclic)
    head = pair[0]
    assert (
        head[0] is pair and head[1]["pair"] is pair and head[2] is head and head[3].table is head[1]
    )
    assert head[4]() is head[4] and head[4].__qualname__ == "g.f" and torch.equal(pair[1], sin)


def test_functions_are_rebuilt():
    def made(v):
        def function(a, b=1, *, c=2):
            return a, b, c

        return MakeFunction(
            function.__code__,
            globals(),
            "function",
            "outer.function",
            MakeTuple((FromGraph(v[2]),)),
            MakeDict([(Const("c"), Const(5))]),
            annotations=MakeDict([(Const("a"), Const(int))]),
            state={"mark": Const(1)},
        )

    function, _, sin, _ = run(result=made)
    assert (
        isinstance(function, types.FunctionType)
        and function.mark == 1
        and function.__annotations__ == {"a": int}
    )
    assert function(0)[0::2] == (0, 5) and torch.equal(function(0)[1], sin)


# ---------------------------------------------------------------- effects

COUNTER = 0


def test_every_effect_is_replayed_in_order():
    class Thing:
        def __init__(self):
            self.a = self.b = 0
            self.items, self.table, self.group = [1], {"x": 1, "y": 2}, {1}

    thing, log = Thing(), []
    items, table, group = thing.items, thing.table, thing.group
    obj = FromSource(Y)

    def part(name):
        return FromSource(DictEntry(InstanceDict(Y), name))

    def side_effects(v):
        return [
            SetAttr(obj, "a", FromGraph(v[2])),
            DelAttr(obj, "b"),
            SetAttr(obj, "c", Const(1), raw=False),
            ReplaceDict(part("table"), [(Const("x"), Const(10))]),
            CallSideEffect(log.append, (Const("before"),)),
            ReplaceList(part("items"), [Const(7), FromGraph(v[1])]),
            ReplaceSet(part("group"), [Const(3)]),
            StoreGlobal(globals(), "COUNTER", Const(5)),
            StoreCell(FromSource(Closure("captured", 0)), FromGraph(v[1])),
            CallSideEffect(functools.partial(log.append, "after")),
        ]

    captured = None

    def function(x, y):
        return captured

    x = torch.randn(3)
    compiled = compile_callable(
        function,
        lambda scope, *_: tape(scope, side_effects=side_effects, result=lambda v: FromSource(Y)),
        backend,
    )
    assert compiled(x, thing) is thing
    assert torch.equal(thing.a, x.cos().sin()) and not hasattr(thing, "b") and thing.c == 1
    assert thing.table is table and table == {"x": 10}
    assert thing.items is items and items[0] == 7 and torch.equal(items[1], x.cos())
    assert thing.group is group and group == {3}
    assert COUNTER == 5 and torch.equal(captured, x.cos()) and log == ["before", "after"]


def test_replaced_dicts_keep_the_order_of_their_new_items():
    plain, ordered = {"a": 1}, collections.OrderedDict(a=1, b=2)

    def side_effects(v):
        pairs = [(Const("b"), FromGraph(v[2])), (Const("a"), Const(0))]
        return [ReplaceDict(FromSource(Y), pairs), ReplaceDict(FromSource(Argument("z", 2)), pairs)]

    run((plain, ordered), side_effects=side_effects)
    assert list(plain) == ["b", "a"] and list(ordered) == ["b", "a"]
