"""Attention whose scores a function changes, forward and backward in one graph, with inputs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims.decompose import decompose
from flambeau_prims.flex_attention import flex_attend, flex_scores
from flambeau_prims.function_table import FunctionTable
from flambeau_prims.graph import Graph
from flambeau_prims.spec import spec_of
from flambeau_prims.tracer import Tracer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

    Function = Callable[..., Any]


@dataclass
class AttentionCase:
    """Inputs: query, key, value, the gradient of the result, then what the functions read."""

    name: str
    change: Function
    visible: Function
    tensors: list[Tensor]
    captured: list[Tensor] = field(default_factory=list)
    block: int = 0
    scale: float = 0.3
    backward: bool = True
    of_captured: bool = False
    options: str = ""
    wanted: tuple[int, ...] = (0, 1, 2)

    def positions(self) -> list[Tensor]:
        """Batch, head, query and key of each score."""
        query, key = self.tensors[:2]
        sizes = (*query.shape[:3], key.shape[2])
        return list(torch.meshgrid(*map(torch.arange, sizes), indexing="ij"))

    def blocks(self) -> tuple[list[Tensor], list[Tensor]]:
        """The tensors of a BlockMask, by rows and by columns."""
        if not self.block:
            return [], []
        seen = self.visible(*self.positions(), *self.captured)[:1, :1]
        counts = [-(-size // self.block) for size in seen.shape[2:]]
        whole = torch.zeros(1, 1, *(count * self.block for count in counts), dtype=torch.bool)
        whole[:, :, : seen.shape[2], : seen.shape[3]] = seen
        number = whole.view(1, 1, counts[0], self.block, counts[1], self.block).sum((3, 5))
        full = number == self.block**2
        partial = (number > 0) & ~full
        return tuple(  # type: ignore[return-value]
            [table for which in (partial, full) for table in _tables(which.transpose(*dims))]
            for dims in ((2, 2), (2, 3))
        )

    def inputs(self) -> list[Tensor]:
        rows, columns = self.blocks()
        return [*self.tensors, *self.captured, *rows, *columns]

    def graph(self, device: str) -> Graph:
        """The primitives of result, log-sum-exp and gradients."""
        tracer = Tracer(device=device)
        specs = [spec_of(one).replace(device=torch.device(device, 0)) if device != "cpu"
                 else spec_of(one) for one in self.inputs()]  # fmt: skip
        with FunctionTable(tracer.device), tracer:
            fakes = [
                tracer.fake(spec, requires_grad=self.backward and at in self.wanted)
                for at, spec in enumerate(specs)
            ]
            results = self.run(fakes, torch.device(device))
        outputs = [one.value for one in results]
        return decompose(Graph(list(tracer.inputs), tracer.nodes, outputs))

    def run(self, inputs: list[Any], device: torch.device) -> list[Any]:
        query, key, value, dout, *rest = inputs
        captured, tables = rest[: len(self.captured)], rest[len(self.captured) :]
        if self.of_captured:
            captured = [one.requires_grad_() for one in captured]
        half = len(tables) // 2
        blocks = (tables[:half], tables[half:], self.block or 128, self.block or 128, self.options)
        scores = flex_scores(query, key, self.scale, *blocks)
        places = [
            torch.arange(size, device=device).view([-1 if d == dim else 1 for d in range(4)])
            for dim, size in enumerate(scores.shape)
        ]
        changed = self.change(scores, *places, *captured)
        seen = self.visible(*places, *captured).expand(scores.shape)
        out, lse, most = flex_attend(changed.expand(scores.shape), seen, query, value, *blocks)
        if not self.backward:
            return [out, lse, most]
        wanted = [inputs[at] for at in self.wanted]
        if self.of_captured:
            wanted += captured
        return [out, lse, *torch.autograd.grad(out, wanted, dout)]


def _tables(which: Tensor) -> tuple[Tensor, Tensor]:
    order = torch.argsort(which.int(), dim=-1, descending=True, stable=True)
    return which.sum(-1).int().contiguous(), order.int().contiguous()


def _tensors(
    batch: int, heads: int, kv_heads: int, queries: int, keys: int, width: int, value_width: int,
    dtype: torch.dtype = torch.float32,
) -> list[Tensor]:  # fmt: skip
    shapes = [
        (batch, heads, queries, width),
        (batch, kv_heads, keys, width),
        (batch, kv_heads, keys, value_width),
    ]
    shapes.append((batch, heads, queries, value_width))
    return [torch.randn(shape).to(dtype) for shape in shapes]


def plain(score: Any, *_: Any) -> Any:
    return score


def everything(b: Any, h: Any, i: Any, j: Any, *_: Any) -> Any:
    return (i >= 0) & (j >= 0)


def causal(b: Any, h: Any, i: Any, j: Any, *_: Any) -> Any:
    return i >= j


def window(b: Any, h: Any, i: Any, j: Any, *_: Any) -> Any:
    return (i - j).abs() <= 7


def late(b: Any, h: Any, i: Any, j: Any, *_: Any) -> Any:
    return (i > 5) & (j <= i)


def cached(b: Any, h: Any, i: Any, j: Any, *_: Any) -> Any:
    return (j <= 200 + i) & (j > 20)


def relative(score: Any, b: Any, h: Any, i: Any, j: Any, *_: Any) -> Any:
    return score + (j - i) * 0.01 + b * 0.1


def capped(score: Any, b: Any, h: Any, i: Any, j: Any, slopes: Any) -> Any:
    return torch.tanh(score / 5) * 5 + slopes[h] * (j - i)


def biased(score: Any, b: Any, h: Any, i: Any, j: Any, bias: Any) -> Any:
    return score + bias[h, i, j]


def by_head(score: Any, b: Any, h: Any, i: Any, j: Any, slopes: Any) -> Any:
    return torch.tanh(score + slopes[h] * (j - i))


def by_distance(score: Any, b: Any, h: Any, i: Any, j: Any, table: Any) -> Any:
    return score + table[h, i - j]


def by_bucket(score: Any, b: Any, h: Any, i: Any, j: Any, table: Any) -> Any:
    return score + table[(i - j).clamp(0, 15)]


def by_key_and_query(score: Any, b: Any, h: Any, i: Any, j: Any, table: Any, factor: Any) -> Any:
    return score * table[h, j] * factor + table[0, i] * score**2


def by_batch(score: Any, b: Any, h: Any, i: Any, j: Any, factor: Any) -> Any:
    return score * factor


def same_document(b: Any, h: Any, i: Any, j: Any, documents: Any) -> Any:
    return (documents[i] == documents[j]) & (i >= j)


def attention_cases() -> Iterator[AttentionCase]:
    """Odd lengths, grouped heads, block masks, strides, dtypes, rows that see nothing."""
    torch.manual_seed(0)
    case, tensors = AttentionCase, _tensors
    yield case("plain", plain, everything, tensors(2, 2, 2, 64, 64, 16, 16))
    yield case("odd", relative, causal, tensors(2, 4, 2, 70, 45, 24, 20))
    yield case("capped", capped, window, tensors(1, 2, 2, 70, 70, 16, 16), [torch.rand(2)], 32)
    yield case("biased", biased, late, tensors(1, 2, 1, 33, 70, 16, 8), [torch.randn(2, 33, 70)])
    documents = torch.arange(96) // 20
    yield case("documents", plain, same_document, tensors(2, 2, 2, 96, 96, 16, 16), [documents], 16)
    for length, block in ((64, 128), (16, 64), (64, 48)):
        short = tensors(1, 2, 2, length, length, 24, 20)
        yield case(f"blocks of {block} over {length}", relative, everything, short, [], block)
    yield case("one query", relative, everything, tensors(3, 4, 2, 1, 90, 16, 16))
    for queries in (1, 3):
        for block in (0, 64):
            shared = tensors(2, 6, 2, queries, 300, 16, 24)
            name = f"shared keys {queries} {block}"
            yield case(name, capped, cached, shared, [torch.rand(6)], block)
    shared = [x.mT.contiguous().mT for x in tensors(1, 4, 2, 5, 90, 16, 16)]
    shared = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in shared]
    yield case("shared keys, turned", relative, causal, shared)
    yield case("parts", relative, causal, tensors(1, 2, 1, 3, 600, 16, 16))
    few = tensors(1, 2, 2, 5, 520, 16, 24, torch.bfloat16)
    yield case("parts of blocks", capped, window, few, [torch.rand(2)], 64)
    for dtype in (torch.bfloat16, torch.float16):
        yield case(f"{dtype}", relative, causal, tensors(1, 2, 2, 64, 64, 32, 32, dtype), [], 32)
    turned = [
        x.transpose(1, 2).contiguous().transpose(1, 2) for x in tensors(2, 2, 2, 40, 40, 16, 16)
    ]
    yield case("turned", plain, causal, turned)
    gaps = [x[..., ::2] for x in tensors(1, 2, 2, 40, 40, 32, 32)]
    yield case("gaps", plain, causal, gaps)
    yield case("inference", relative, late, tensors(1, 2, 2, 40, 40, 16, 16), backward=False)
    for wanted in ((0,), (1,), (2,), (0, 2), (1, 2)):
        some = tensors(1, 2, 1, 33, 40, 16, 24)
        yield case(f"gradients {wanted}", relative, causal, some, wanted=wanted)
    for options in (
        "BLOCK_M=32;BLOCK_N=16;bwd_BLOCK_M1=16;bwd_BLOCK_N2=32;num_warps=2;num_stages=1",
        "PRESCALE_QK=True;BLOCKS_ARE_CONTIGUOUS=True;FORCE_USE_FLEX_ATTENTION=True",
        "ROWS_GUARANTEED_SAFE=True;SPLIT_KV=3;FLOAT32_PRECISION='ieee'",
    ):
        yield case(
            options, relative, causal, tensors(1, 2, 1, 96, 96, 16, 16), block=32, options=options
        )
    halves = tensors(1, 2, 1, 40, 40, 16, 16, torch.bfloat16)
    yield case("prescaled", relative, causal, halves, options="PRESCALE_QK=True")
    yield case("negative scale", plain, causal, tensors(1, 2, 2, 40, 40, 16, 16), scale=-0.5)

    yield from cases_of_gradients_of_captured_tensors()


def cases_of_gradients_of_captured_tensors() -> Iterator[AttentionCase]:
    """Tensors that score functions read, by head, key, query and distance."""
    rand, tensors = torch.rand, _tensors
    odd = (2, 4, 2, 70, 45, 24, 20)
    for name, change, visible, sizes, captured, options in (
        ("by head", by_head, window, odd, [rand(4)], {"block": 32}),
        ("by distance", by_distance, causal, odd, [rand(4, 140)], {}),
        ("by bucket", by_bucket, causal, odd, [rand(16).bfloat16()], {"block": 16}),
        ("by key", by_key_and_query, late, odd, [rand(4, 70), rand(())], {}),
        ("by key in blocks", by_key_and_query, causal, odd, [rand(4, 70), rand(())], {"block": 16}),
        ("by batch", by_batch, causal, odd, [rand(2, 1, 1, 1)], {}),
        ("nothing else", by_distance, causal, odd, [rand(4, 140)], {"wanted": ()}),
        ("no queries", by_head, causal, odd, [rand(4)], {"wanted": (2,)}),
        (
            "one query of captured",
            by_distance,
            cached,
            (1, 4, 2, 1, 90, 16, 16),
            [rand(4, 140)],
            {},
        ),
    ):
        given: dict[str, Any] = options
        yield AttentionCase(
            f"captured {name}",
            change,
            visible,
            tensors(*sizes),
            captured,
            of_captured=True,
            **given,
        )


def worst(got: list[Tensor], exact: list[Tensor]) -> float:
    """The largest difference, relative to the largest finite value of each result."""
    result = 0.0
    for one, other in zip(got, exact, strict=True):
        one, other = one.double(), other.double()
        difference = torch.where(one == other, 0.0, (one - other).abs())
        largest = other[other.isfinite()].abs().max()
        error = float(difference.max() / largest)
        result = max(result, math.inf if math.isnan(error) else error)
    return result
