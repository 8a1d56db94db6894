"""Exported graphs: what they return, what they check, which sizes vary, what is an error."""

from __future__ import annotations

import collections
import copy
import dataclasses
import functools
import itertools
import xml.etree.ElementTree as ElementTree
from typing import Any, NamedTuple

import pytest
import torch
from exporting import Net, same
from torch import nn

import flambeau_capture
from flambeau_capture import CaptureError, Dim, InputMismatch, export
from flambeau_capture.exported.svg import _boxes, _layers, _order, _place

BATCH = Dim("batch")


class Pair(NamedTuple):
    first: torch.Tensor
    second: Any


@dataclasses.dataclass
class Batch:
    ids: torch.Tensor
    masks: dict[str, torch.Tensor]


# ---------------------------------------------------------------- calling


def test_a_module_with_buffers() -> None:
    model = Net()
    twin = copy.deepcopy(model)
    exported = export(
        model, (torch.randn(6, 8),), {"mask": torch.randn(6, 1)},
        dynamic_shapes={"x": {0: BATCH}, "mask": {0: BATCH}},
    )  # fmt: skip
    for rows in (5, 2, 9):
        x, mask = torch.randn(rows, 8), torch.randn(rows, 1)
        found, expected = exported(x, mask=mask), twin(x, mask=mask)
        same(found, expected)
        assert found["x"] is x
    for name, buffer in twin.named_buffers():
        same(exported.state[name], buffer)
    assert {str(mutation) for mutation in exported.mutations} == {
        "writes to buffer norm.num_batches_tracked",
        "writes to buffer norm.running_mean",
        "writes to buffer norm.running_var",
        "replaces buffer calls",
    }
    assert exported.state["linear.weight"] is model.linear.weight
    assert {item.kind for item in exported.inputs} == {"argument", "parameter", "buffer"}


def nested(batch: Batch, *rest: torch.Tensor, scale: float = 2.0, **named: Any) -> Any:
    total = batch.ids * scale + batch.masks["a"]
    for item in rest:
        total = total + item
    pair = Pair(total, [named["last"], (total, None, ...)])
    return pair, {"dtype": total.dtype, 3: torch.max(total, 1)}, collections.deque([total], 4)


def test_nested_arguments_and_results() -> None:
    def call(rows: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        batch = Batch(torch.randn(rows, 3), {"a": torch.randn(3), "unused": torch.randn(2)})
        return (batch, torch.randn(rows, 1), torch.randn(3)), {"last": torch.randn(2, 2)}

    args, kwargs = call(4)
    shapes = {"batch": {"ids": {0: BATCH}}, "rest": [{0: BATCH}, None]}
    exported = export(nested, args, kwargs, dynamic_shapes=shapes)
    for rows in (4, 7):
        args, kwargs = call(rows)
        same(exported(*args, **kwargs), nested(*args, **kwargs))
    assert exported.signature.paths == (
        "batch.ids",
        "batch.masks['a']",
        "batch.masks['unused']",
        "rest[0]",
        "rest[1]",
        "named['last']",
    )


def test_arguments_come_back_as_themselves() -> None:
    exported = export(lambda x, items: (items, x, x, items[0]), (torch.randn(3), [torch.randn(2)]))
    x, items = torch.randn(3), [torch.randn(2)]
    result = exported(x, items)
    assert result[0] is items
    assert result[1] is result[2] is x
    assert result[3] is items[0]


def test_one_object_twice_in_a_result() -> None:
    def program(x: torch.Tensor) -> Any:
        shared = [x + 1]
        return shared, {"again": shared}

    first, second = export(program, (torch.randn(3),))(torch.randn(3))
    assert second["again"] is first


@pytest.mark.parametrize(
    "x",
    [
        torch.randn(3, 5),
        torch.randn(5, 3).t(),
        torch.randn(0, 5),
        torch.randn(7, 10)[1::2, ::2],
        torch.randn(3, 1, 5).expand(3, 4, 5),
    ],
    ids=["contiguous", "transposed", "empty", "strided", "expanded"],
)
def test_layouts(x: torch.Tensor) -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.transpose(0, -1) * 2, x.sum(0)

    same(export(program, (x,))(x), program(x))


def test_writes_to_an_argument() -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return x + y

    exported = export(program, (torch.randn(3), torch.randn(3)))
    assert [str(mutation) for mutation in exported.mutations] == ["writes to argument x"]
    x, y = torch.randn(3), torch.randn(3)
    ours, theirs = x.clone(), x.clone()
    same(exported(ours, y), program(theirs, y))
    same(ours, theirs)
    same(exported(ours, ours), program(theirs, theirs))
    same(ours, theirs)


def test_gradients_flow() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh())
    twin = copy.deepcopy(model)
    x = torch.randn(5, 3)
    export(model, (x,))(x).sum().backward()
    twin(x).sum().backward()
    same(model[0].weight.grad, twin[0].weight.grad)


def test_what_can_be_exported() -> None:
    x = torch.randn(2, 3)
    linear = nn.Linear(3, 3)
    same(export(linear.forward, (x,))(x), linear(x))

    def scaled(factor: float, x: torch.Tensor, shift: float = 1.0) -> torch.Tensor:
        return linear(x) * factor + shift

    partial = functools.partial(scaled, 3.0)
    exported = export(partial, (x,))
    same(exported(x), partial(x))
    assert set(exported.state) == {"linear.weight", "linear.bias"}
    hooked = nn.Linear(3, 3)
    hooked.register_forward_hook(lambda module, args, result: result * 2)
    same(export(hooked, (x,))(x), hooked(x))
    with pytest.raises(TypeError, match="a Python function, a method or"):
        export(len, (x,))
    with pytest.raises(TypeError, match="tuple of positional arguments"):
        export(linear, x)  # type: ignore[arg-type]


def test_autocast_and_default_dtype_are_part_of_it() -> None:
    linear, x = nn.Linear(8, 8), torch.randn(4, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        exported = export(linear, (x,))
        expected = linear(x)
    same(exported(x), expected)
    assert expected.dtype is torch.bfloat16
    plain = export(lambda x: x + torch.ones(3), (torch.randn(3),))
    torch.set_default_dtype(torch.float64)
    try:
        with pytest.raises(InputMismatch, match="default dtype was"):
            plain(torch.randn(3, dtype=torch.float32))
    finally:
        torch.set_default_dtype(torch.float32)


def test_wrong_inputs_are_named() -> None:
    exported = export(
        lambda x, options, *, flag=True: x + options["bias"],
        (torch.randn(4, 3), {"bias": torch.randn(3)}),
        dynamic_shapes={"x": {0: Dim("rows", max=16)}},
    )
    x, options = torch.randn(5, 3), {"bias": torch.randn(3)}
    exported(x, options)
    wrong: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
        ("x has dtype torch.float64, was exported with torch.float32", (x.double(), options), {}),
        ("x has size 4 in dimension 1, must have 3", (torch.randn(5, 4), options), {}),
        ("x has dimensions 1, was exported with 2", (x[0], options), {}),
        (r"rows >= 2 does not hold: rows is 1", (x[:1], options), {}),
        (r"rows <= 16 does not hold: rows is 17", (torch.randn(17, 3), options), {}),
        ("x has strides", (torch.randn(3, 5).t(), options), {}),
        ("x is a tensor; a int is given", (3, options), {}),
        ("options was a dict in the export and is", (x, [x]), {}),
        ("options had the keys", (x, {}), {}),
        ("flag was True in the export and is False now", (x, options), {"flag": False}),
    ]
    for text, args, kwargs in wrong:
        with pytest.raises(InputMismatch, match=text):
            exported(*args, **kwargs)
    for args, kwargs in (((x,), {}), ((x, options, 3), {}), ((x, options), {"flags": 1})):
        with pytest.raises(TypeError):
            exported(*args, **kwargs)


def test_one_tensor_in_two_places() -> None:
    x = torch.randn(3)
    exported = export(lambda a, b: a + b, (x, x))
    same(exported(x, x), x + x)
    with pytest.raises(InputMismatch, match="same object"):
        exported(x, x.clone())


# ---------------------------------------------------------------- sizes


def double(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x[: x.shape[0] // 2] * y


def ints(x: torch.Tensor, n: int) -> torch.Tensor:
    return x * n + torch.zeros(n, 1)


SIZES: dict[str, tuple[Any, Any, Any, list[tuple[int, ...]]]] = {
    "named": (
        lambda x, y: x + y,
        lambda n, m: (torch.randn(n, m), torch.randn(n, 1)),
        ({0: BATCH, 1: Dim("width")}, {0: BATCH}),
        [(5, 7), (2, 2)],
    ),
    "tuple": (lambda x: x * 2, lambda n: (torch.randn(n, 3),), {"x": (BATCH, None)}, [(5,), (8,)]),
    "negative dimension": (
        lambda x: x * 2,
        lambda n: (torch.randn(3, n),),
        {"x": {-1: BATCH}},
        [(5,), (8,)],
    ),
    "multiple": (
        double,
        lambda n: (torch.randn(2 * n, 8), torch.randn(n, 8)),
        ({0: 2 * BATCH}, {0: BATCH}),
        [(5,), (2,)],
    ),
    "multiple alone": (
        lambda x: x.reshape(2, -1),
        lambda n: (torch.randn(2 * n, 3),),
        ({0: BATCH * 2},),
        [(5,), (2,)],
    ),
    "shifted": (
        lambda x: x[1:] - x[:-1],
        lambda n: (torch.randn(n + 1),),
        ({0: BATCH + 1},),
        [(5,), (2,)],
    ),
    "shifted down": (
        lambda x: x * x.shape[0],
        lambda n: (torch.randn(2 * n - 1),),
        ({0: 2 * BATCH - 1},),
        [(5,), (2,)],
    ),
    "int": (ints, lambda n: (torch.randn(n, 3), n), ({0: BATCH}, BATCH), [(5,), (2,)]),
    "int auto": (lambda x, n: x[:n], lambda n: (torch.randn(9), n), (None, Dim.AUTO), [(5,), (3,)]),
    "automatic": (
        lambda x, y: x @ y,
        lambda n, m: (torch.randn(n, m), torch.randn(m, n)),
        Dim.AUTO,
        [(5, 7), (2, 3)],
    ),
    "dynamic": (
        lambda x: x.flatten().cumsum(0),
        lambda n: (torch.randn(n, 2),),
        ({0: Dim.DYNAMIC},),
        [(5,), (9,)],
    ),
    "computed in the graph": (
        lambda x: torch.arange(x.shape[0]) * 2 + x.mean(1),
        lambda n: (torch.randn(n, 2),),
        ({0: BATCH},),
        [(5,), (9,)],
    ),
}


@pytest.mark.parametrize("name", SIZES)
def test_sizes_vary(name: str) -> None:
    program, make, shapes, sizes = SIZES[name]
    hints = (4, 3)[: len(sizes[0])]
    exported = export(program, make(*hints), dynamic_shapes=shapes)
    for values in (hints, *sizes):
        args = make(*values)
        same(exported(*args), program(*args))


def test_symbols_have_the_names_of_the_user() -> None:
    exported = export(
        double, (torch.randn(8, 2), torch.randn(4, 2)), dynamic_shapes=({0: 2 * BATCH}, {0: BATCH})
    )
    text = str(exported)
    assert "graph double(x: f32[2*batch, 2], y: f32[batch, 2])" in text
    assert "mul: f32[batch, 2] = operator.mul(" in text
    assert "test_export.py:" in text
    assert "batch >= 2" in exported.guards
    assert any(node.name == "batch" for node in exported.graph_module.graph.nodes)
    with pytest.raises(InputMismatch, match=r"x has size 9 in dimension 0, must have 2\*batch = 8"):
        exported(torch.randn(9, 2), torch.randn(4, 2))


def compares(x: torch.Tensor) -> torch.Tensor:
    if x.shape[0] == 4:
        return x + 1
    return x - 1


def loops(x: torch.Tensor) -> torch.Tensor:
    for row in range(x.shape[0]):
        x = x + row
    return x


def limits(x: torch.Tensor) -> torch.Tensor:
    if x.shape[0] > 512:
        raise ValueError("too long")
    return x + 1


def line_of(program: Any, offset: int) -> str:
    return rf"test_export\.py:{program.__code__.co_firstlineno + offset}"


def test_a_specialised_size_is_an_error_with_its_line() -> None:
    x = torch.randn(4, 3)
    for program in (compares, loops):
        wanted = rf"batch \(x\.size\(0\)\) was specialised to 4 at .*{line_of(program, 1)}"
        with pytest.raises(CaptureError, match=wanted) as caught:
            export(program, (x,), dynamic_shapes=({0: BATCH},))
        assert caught.value.reason.id == "size-specialised"
        with pytest.raises(CaptureError, match=r"x\.size\(0\) was specialised to 4"):
            export(program, (x,), dynamic_shapes=({0: Dim.DYNAMIC},))
        exported = export(program, (x,), dynamic_shapes=({0: Dim.AUTO},))
        same(exported(x), program(x))
        with pytest.raises(InputMismatch, match=r"s0 == 4 does not hold \(required at"):
            exported(torch.randn(5, 3))


def test_a_needed_relation_is_an_error_with_its_line() -> None:
    x = torch.randn(4, 3)
    with pytest.raises(
        CaptureError, match=rf"batch <= 512 is required at .*{line_of(limits, 1)}"
    ) as caught:
        export(limits, (x,), dynamic_shapes=({0: BATCH},))
    assert caught.value.reason.id == "size-relation"
    assert "max=512" in caught.value.reason.hint
    same(export(limits, (x,), dynamic_shapes=({0: Dim("batch", max=512)},))(x), limits(x))
    other = Dim("other")
    with pytest.raises(CaptureError, match="batch == other is required at"):
        export(torch_add, (x, x.clone()), dynamic_shapes=({0: BATCH}, {0: other}))
    exported = export(torch_add, (x, x.clone()), dynamic_shapes=({0: BATCH}, {0: Dim.AUTO}))
    same(exported(x, x + 1), torch_add(x, x + 1))
    with pytest.raises(CaptureError, match=r"batch (!= 1|>= 2) is required"):
        export(torch_add, (x, x[:1].clone()), dynamic_shapes=({0: Dim("batch", min=1)},))


def torch_add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x + y


@pytest.mark.parametrize(
    ("shapes", "text"),
    [
        ({"z": None}, r"names \['z'\], but the parameters are \['x', 'y'\]"),
        ({"x": {5: BATCH}}, "dimension 5 of x, which has 2"),
        ({"x": (BATCH,)}, "1 dimensions for x, which has 2"),
        ((None, None, None), "3 items for the parameters"),
        ({"x": {0: BATCH}, "y": {1: BATCH}}, "batch is 4 at x.size.0. and 3 at y.size.1."),
        ({"x": {0: BATCH}, "y": {0: Dim("batch", max=9)}}, "two Dims of one name"),
        ({"x": {1: 2 * BATCH}}, r"x.size\(1\) is 3 in the example, which is not 2\*batch"),
        ({"x": {0: Dim("batch", min=5)}}, r"x.size\(0\) is 4 in the example, outside Dim"),
        ({"x": {0: 5}}, r"dynamic_shapes says 5 of x.size\(0\), whose size is 4"),
        ({"x": {0: "batch"}}, "a Dim, Dim.AUTO"),
        ("batch", "a dict by parameter"),
    ],
)  # fmt: skip
def test_wrong_dynamic_shapes(shapes: Any, text: str) -> None:
    with pytest.raises((ValueError, TypeError), match=text):
        export(torch_add, (torch.randn(4, 3), torch.randn(4, 3)), dynamic_shapes=shapes)


@pytest.mark.parametrize("wrong", ["2x", "class", "min", "f1"])
def test_wrong_names_of_dims(wrong: str) -> None:
    with pytest.raises(ValueError, match="Dim"):
        Dim(wrong)


def test_wrong_ranges_of_dims() -> None:
    for options in ({"min": -1}, {"min": 4, "max": 4}):
        with pytest.raises(ValueError, match="Dim"):
            Dim("n", **options)
    with pytest.raises(ValueError, match="multiplied by positive ints"):
        BATCH * 0


# ---------------------------------------------------------------- errors


class Holder:
    def __init__(self) -> None:
        self.tensor = torch.randn(3)


def test_breaks_name_the_line() -> None:
    def branches(x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return x
        return -x

    with pytest.raises(CaptureError, match=rf"{line_of(branches, 1)}.*data-dependent"):
        export(branches, (torch.randn(3),))


LOG: list[Any] = []


def appends(x: torch.Tensor) -> torch.Tensor:
    LOG.append(x.shape)
    return x + 1


@pytest.mark.parametrize(
    ("program", "argument", "id"),
    [
        (lambda x: print(x.shape) or x + 1, torch.randn(3), "export-effect"),
        (appends, torch.randn(3), "export-effect"),
        (lambda holder: holder.tensor + 1, Holder(), "export-input"),
        (lambda x: (lambda: x), torch.randn(3), "export-result"),
    ],
)  # fmt: skip
def test_what_an_exported_graph_cannot_do(program: Any, argument: Any, id: str) -> None:
    with pytest.raises(CaptureError) as caught:
        export(program, (argument,))
    assert caught.value.reason.id == id
    assert "test_export.py" in caught.value.reason.where
    assert LOG == []


# ---------------------------------------------------------------- pictures


def test_svg(tmp_path: Any) -> None:
    model = nn.Sequential(
        *(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True) for _ in range(4))
    ).eval()
    x = torch.randn(2, 3, 8)
    exported = export(model, (x,), dynamic_shapes=({0: BATCH},))
    exported.to_svg(tmp_path / "graph.svg")
    root = ElementTree.parse(tmp_path / "graph.svg").getroot()
    boxes = root.findall("{http://www.w3.org/2000/svg}g")
    nodes = exported.graph_module.graph.nodes
    assert len(boxes) == 1 + sum(node.op != "placeholder" for node in nodes)
    titles = [box.findtext("{http://www.w3.org/2000/svg}title") or "" for box in boxes]
    assert any("f32[batch, 3, 8]" in title and "layer_norm" in title for title in titles)


def test_boxes_do_not_overlap() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        kept = [x * n for n in range(9)]
        y = x
        for item in kept:
            y = torch.sin(y) + item
        return y + x

    layers = _layers(_boxes(export(program, (torch.randn(3),))))
    _order(layers)
    _place(layers)
    for layer in layers:
        for left, right in itertools.pairwise(layer):
            assert left.x + left.width / 2 < right.x - right.width / 2
    for upper, lower in itertools.pairwise(layers):
        assert all(below in lower for box in upper for below in box.below)


def test_public_names() -> None:
    assert flambeau_capture.export is export
    exported = export(torch_add, (torch.randn(2), torch.randn(2)))
    assert repr(exported) == "<ExportedGraph torch_add: 2 inputs, 0 lifted tensors, 1 calls>"
    assert exported.print_readable(print_output=False) == str(exported)
    flat = exported.flat_inputs(torch.ones(2), torch.ones(2))
    same(exported.graph_module(*flat)[0], torch.full((2,), 2.0))
