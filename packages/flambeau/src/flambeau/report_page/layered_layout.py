"""Where the nodes of an acyclic graph lie, layer by layer, and through which points its edges go.

a -> b, a -> c, b -> d, c -> d   ->   layers a | b c | d

Longest paths give the layers; a node with readers lies right above the first of them. An edge over
several layers goes through a point in each. Barycentres order each layer (Sugiyama, Tagawa, Toda
1981). Each node then lies as close to its neighbours' mean as its order and width allow: isotonic
regression, by pooling adjacent violators.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

LAYER_HEIGHT = 76.0
GAP = 18.0
"""Between neighbours in a layer."""

POINT_WIDTH = 10.0
LONGEST_ROUTE = 12
"""An edge over more layers is drawn as one curve."""

SWEEPS = 8


@dataclass(frozen=True)
class Layout:
    """`centers[i]` is where node i lies; `routes[j]` are the points of edge j, ends included."""

    centers: list[tuple[float, float]]
    routes: list[list[tuple[float, float]]]
    width: float
    height: float


@dataclass
class _Item:
    """A node, or a point of a long edge."""

    layer: int
    width: float
    above: list[int] = field(default_factory=list)
    below: list[int] = field(default_factory=list)
    x: float = 0.0


def layered_layout(widths: list[float], edges: list[tuple[int, int]]) -> Layout:
    """A layout of nodes of these widths; an edge goes from a lower number to a higher one."""
    if not widths:
        return Layout([], [], 0.0, 0.0)
    items = [
        _Item(layer, width)
        for layer, width in zip(_layers(len(widths), edges), widths, strict=True)
    ]
    chains = [_chain(items, start, end) for start, end in edges]
    layers: list[list[int]] = [[] for _ in range(1 + max(item.layer for item in items))]
    for number, item in enumerate(items):
        layers[item.layer].append(number)
    for sweep in range(SWEEPS):
        _order(items, layers, down=sweep % 2 == 0)
    for layer in layers:
        _place(items, layer, [0.0] * len(layer))
    for sweep in range(SWEEPS):
        _align(items, layers, down=sweep % 2 == 0)
    left = min(item.x - item.width / 2 for item in items) - GAP
    right = max(item.x + item.width / 2 for item in items) + GAP
    points = [(item.x - left, (item.layer + 0.5) * LAYER_HEIGHT) for item in items]
    return Layout(
        points[: len(widths)],
        [[points[number] for number in chain] for chain in chains],
        right - left,
        len(layers) * LAYER_HEIGHT,
    )


def _layers(count: int, edges: list[tuple[int, int]]) -> list[int]:
    layers = [0] * count
    for start, end in sorted(edges):
        layers[end] = max(layers[end], layers[start] + 1)
    first: dict[int, int] = {}
    for start, end in sorted(edges, key=lambda edge: -edge[0]):
        first[start] = min(first.get(start, layers[end]), layers[end])
        layers[start] = first[start] - 1
    top = min(layers)
    return [layer - top for layer in layers]


def _chain(items: list[_Item], start: int, end: int) -> list[int]:
    """The items that an edge goes through, which become neighbours."""
    chain = [start]
    if items[end].layer - items[start].layer <= LONGEST_ROUTE:
        for layer in range(items[start].layer + 1, items[end].layer):
            items.append(_Item(layer, POINT_WIDTH))
            chain.append(len(items) - 1)
    chain.append(end)
    for upper, lower in pairwise(chain):
        items[upper].below.append(lower)
        items[lower].above.append(upper)
    return chain


def _order(items: list[_Item], layers: list[list[int]], *, down: bool) -> None:
    position = {number: at for layer in layers for at, number in enumerate(layer)}
    for layer in layers if down else reversed(layers):

        def barycentre(number: int) -> float:
            neighbours = items[number].above if down else items[number].below
            if not neighbours:
                return float(position[number])
            return sum(position[other] for other in neighbours) / len(neighbours)

        layer.sort(key=barycentre)
        position.update((number, at) for at, number in enumerate(layer))


def _align(items: list[_Item], layers: list[list[int]], *, down: bool) -> None:
    for layer in layers if down else reversed(layers):
        wanted = []
        for number in layer:
            item = items[number]
            neighbours = (item.above if down else item.below) or [number]
            wanted.append(sum(items[other].x for other in neighbours) / len(neighbours))
        _place(items, layer, wanted)


def _place(items: list[_Item], layer: list[int], wanted: list[float]) -> None:
    """The places closest to the wanted ones, in squares, that keep order and distances."""
    offset, offsets = 0.0, []
    for at, number in enumerate(layer):
        if at:
            offset += (items[layer[at - 1]].width + items[number].width) / 2 + GAP
        offsets.append(offset)
    blocks: list[list[float]] = []  # sum, count
    for want, shift in zip(wanted, offsets, strict=True):
        blocks.append([want - shift, 1.0])
        while len(blocks) > 1 and blocks[-2][0] / blocks[-2][1] > blocks[-1][0] / blocks[-1][1]:
            total, count = blocks.pop()
            blocks[-1][0] += total
            blocks[-1][1] += count
    means = [total / count for total, count in blocks for _ in range(int(count))]
    for number, mean, shift in zip(layer, means, offsets, strict=True):
        items[number].x = mean + shift
