"""An exported graph as a picture: SVG text, calls in layers from the arguments down to the result.

A call's layer is the longest way to it from the arguments. An edge that spans several layers goes
through a point in each of them, one chain for each value however many calls read it, and the points
take part in the ordering of the layers: so edges keep clear of boxes and a graph of thousands of
calls stays a readable strip. Lifted tensors are lines of text in the boxes that read them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING

from flambeau_capture.exported.contents import (
    GraphContents,
    call_text,
    node_text,
    placeholders,
    result_text,
    spec_text,
    target_text,
)
from flambeau_capture.exported.tree import argument_text

if TYPE_CHECKING:
    from torch import fx


_CHARACTER, _TITLE_CHARACTER, _LINE, _MARGIN, _GAP, _LAYER_GAP = 6.2, 7.2, 14, 8, 18, 34
_LONGEST_LINE = 48
_ORDERING_SWEEPS = 4

_MATRIX = {
    "linear", "matmul", "bmm", "mm", "addmm", "baddbmm", "einsum", "scaled_dot_product_attention",
    "bilinear", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d",
    "conv_transpose3d", "multi_head_attention_forward",
}  # fmt: skip
_VIEW = {
    "view", "reshape", "transpose", "permute", "getitem", "expand", "expand_as", "unsqueeze",
    "squeeze", "flatten", "unflatten", "t", "chunk", "split", "select", "narrow", "contiguous",
    "getattr", "view_as", "movedim", "swapaxes", "unbind", "sym_size.int", "to",
}  # fmt: skip
_IN_PLACE = {"setitem", "iadd", "isub", "imul", "itruediv", "imatmul", "iand", "ior", "ixor"}
_STYLE = """
  text { font: 10px ui-monospace, Menlo, Consolas, monospace; fill: #222 }
  rect { stroke: #777; stroke-width: 1; rx: 4 }
  path { fill: none; stroke: #9aa5b1; stroke-width: 1.2 }
  g:hover > rect { stroke: #d4480b; stroke-width: 2 }
  .title { font-weight: bold; font-size: 11px }
  .argument { fill: #dbeafe } .result { fill: #dcfce7 } .call { fill: #f6f6f4 }
  .matrix { fill: #fde7c7 } .view { fill: #ffffff } .side_effect { fill: #fee2e2 }
"""

_TITLE = ' class="title"'


@dataclass(eq=False, slots=True)
class _Box:
    """A box, or a point of an edge (without lines)."""

    lines: list[str] = field(default_factory=list)
    kind: str = ""
    title: str = ""
    layer: int = 0
    x: float = 0.0
    above: list[_Box] = field(default_factory=list)
    below: list[_Box] = field(default_factory=list)

    @property
    def width(self) -> float:
        if not self.lines:
            return 2.0
        title = len(self.lines[0]) * _TITLE_CHARACTER
        return max(title, *(len(line) * _CHARACTER for line in self.lines)) + 2 * _MARGIN

    @property
    def height(self) -> float:
        return len(self.lines) * _LINE + (_MARGIN if self.lines else 0)


def svg_of(exported: GraphContents) -> str:
    """The whole SVG document."""
    boxes = _boxes(exported)
    layers = _layers(boxes)
    _order(layers)
    _place(layers)
    return _drawn(exported, layers)


# ---------------------------------------------------------------- boxes


def _boxes(exported: GraphContents) -> list[_Box]:
    """A box for each argument, call and the result, in program order, connected."""
    held = {}
    box_of: dict[fx.Node, _Box] = {}
    boxes = []
    for node, item in zip(placeholders(exported), exported.inputs, strict=True):
        if item.kind == "argument":
            box_of[node] = box = _Box([item.name, _short(spec_text(node.meta["spec"]))], "argument")
            box.title = f"argument {item.name}: {spec_text(node.meta['spec'])}"
            boxes.append(box)
        else:
            held[node] = item.name
    for node in exported.graph_module.graph.nodes:
        if node.op == "placeholder":
            continue
        if node.op == "output":
            box = _Box(["result"], "result", f"return {result_text(exported)}")
        else:
            name = target_text(node.target).rpartition("torch.nn.functional.")[2]
            name = (
                name.removeprefix("operator.")
                .removeprefix("torch.ops.aten.")
                .removeprefix("torch.")
            )
            box = _Box([name], _kind(name), node_text(node))
            if node.meta.get("spec") is not None:
                box.lines.append(_short(spec_text(node.meta["spec"])))
            box.lines += [_short(held[used]) for used in node.all_input_nodes if used in held]
            if not node.all_input_nodes:
                box.lines.append(
                    _short(", ".join(map(argument_text, node.args)) or call_text(node))
                )
        for used in node.all_input_nodes:
            if used in box_of:
                box.above.append(box_of[used])
                box_of[used].below.append(box)
        box_of[node] = box
        boxes.append(box)
    return boxes


def _kind(name: str) -> str:
    if name in _MATRIX:
        return "matrix"
    in_place = name in _IN_PLACE or (name.endswith("_") and not name.endswith("__"))
    return "side_effect" if in_place else "view" if name in _VIEW else "call"


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_LINE else text[: _LONGEST_LINE - 1] + "…"


# ---------------------------------------------------------------- layers


def _layers(boxes: list[_Box]) -> list[list[_Box]]:
    """Boxes by layer, with a point in each layer that an edge passes."""
    for box in boxes:
        box.layer = max((before.layer + 1 for before in box.above), default=0)
    for box in reversed(boxes):
        if not box.above and box.below and box.kind != "argument":
            box.layer = min(after.layer for after in box.below) - 1
    lowest = min(box.layer for box in boxes)
    layers: list[list[_Box]] = [[] for _ in range(max(box.layer for box in boxes) - lowest + 1)]
    for box in boxes:
        box.layer -= lowest
        layers[box.layer].append(box)
    for box in boxes:
        _insert_points(box, layers)
    return layers


def _insert_points(box: _Box, layers: list[list[_Box]]) -> None:
    """Replace the edges below a box that span layers by one chain of points."""
    readers = sorted(dict.fromkeys(box.below), key=lambda reader: reader.layer)
    box.below = []
    last = box
    for reader in readers:
        while last.layer < reader.layer - 1:
            point = _Box(layer=last.layer + 1, above=[last])
            last.below.append(point)
            layers[point.layer].append(point)
            last = point
        last.below.append(reader)
        reader.above = [last if before is box else before for before in reader.above]


def _order(layers: list[list[_Box]]) -> None:
    """Order each layer by its neighbours' mean, down and up in turn, so that few edges cross."""
    for sweep in range(_ORDERING_SWEEPS):
        downwards = sweep % 2 == 0
        for layer in layers if downwards else reversed(layers):
            place = {id(box): at for at, box in enumerate(layer)}

            def mean(box: _Box, *, own: dict[int, int] = place, down: bool = downwards) -> float:
                near = box.above if down else box.below
                return sum(other.x for other in near) / len(near) if near else own[id(box)]

            layer.sort(key=mean)
            for at, box in enumerate(layer):
                box.x = at - len(layer) / 2


def _place(layers: list[list[_Box]]) -> None:
    """Set the middles' x: below the mean of the boxes above, apart from their neighbours."""
    for layer in layers:
        wanted = [
            sum(other.x for other in box.above) / len(box.above) if box.above else None
            for box in layer
        ]
        right = 0.0
        offsets: list[float] = []
        for box, want in zip(layer, wanted, strict=True):
            left_limit = right + box.width / 2
            box.x = left_limit if want is None or not offsets else max(want, left_limit)
            if want is not None and not offsets:
                box.x = want
            right = box.x + box.width / 2 + _GAP
            offsets.append(0.0 if want is None else want - box.x)
        shift = sum(offsets) / len(offsets)
        for box in layer:
            box.x += shift


# ---------------------------------------------------------------- drawing


def _drawn(exported: GraphContents, layers: list[list[_Box]]) -> str:
    left = min(box.x - box.width / 2 for layer in layers for box in layer) - _GAP
    tops, y = [], 2.0 * _GAP
    for layer in layers:
        for box in layer:
            box.x -= left
        tops.append(y)
        y += max(box.height for box in layer) + _LAYER_GAP
    width = max(box.x + box.width / 2 for layer in layers for box in layer) + _GAP
    edges, shapes = [], []
    for layer, top in zip(layers, tops, strict=True):
        bottom = top + max(box.height for box in layer)
        for box in layer:
            edges.append(_edges(box, top, bottom))
            if box.lines:
                shapes.append(_shape(box, top))
    title = escape(f"{exported.name}: {len(shapes)} boxes")
    size = f'width="{width:.0f}" height="{y:.0f}" viewBox="0 0 {width:.0f} {y:.0f}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n<title>{title}</title>'
    body = "\n".join([*filter(None, edges), *shapes])
    return f"{head}\n<style>{_STYLE}</style>\n{body}\n</svg>\n"


def _edges(box: _Box, top: float, bottom: float) -> str:
    """The curves from a box, or through a point, down to the next layer."""
    if not box.below:
        return ""
    start = top + box.height
    curve = f"M{box.x:.0f} {start:.0f}V{bottom:.0f}" if bottom > start else ""
    middle, end = bottom + _LAYER_GAP / 2, bottom + _LAYER_GAP
    for below in box.below:
        curve += f"M{box.x:.0f} {bottom:.0f}C{box.x:.0f} {middle:.0f} "
        curve += f"{below.x:.0f} {middle:.0f} {below.x:.0f} {end:.0f}"
    return f'<path d="{curve}"/>'


def _shape(box: _Box, top: float) -> str:
    left = box.x - box.width / 2
    texts = "".join(
        f'<text x="{left + _MARGIN:.0f}" '
        f'y="{top + (at + 1) * _LINE:.0f}"{_TITLE if at == 0 else ""}>{escape(line)}</text>'
        for at, line in enumerate(box.lines)
    )
    size = f'width="{box.width:.0f}" height="{box.height:.0f}"'
    frame = f'<rect class="{box.kind}" x="{left:.0f}" y="{top:.0f}" {size}/>'
    return f"<g><title>{escape(box.title)}</title>{frame}{texts}</g>"
