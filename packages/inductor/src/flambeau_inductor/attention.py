"""Attention as one kernel: what it multiplies, and what becomes of a score between two products.

    forward               out = softmax(where(visible, changed(q k^T * scale), -inf)) v
    query_gradient        dq = gradient(p * (dout v^T - delta)) k * scale
                          dbias[place(...)] += value(p * (dout v^T - delta))
    key_value_gradients   dk = gradient(...)^T q * scale;  dv = p^T dout

`body` says in statements of the loop IR what one score becomes, over the axes i0 (batch), i1 (head
of the query), i2 (position of the query) and r0 (position of the key). It loads a raw score from
SCORES and the gradient of a changed score from GRADIENTS, which are no memory, and names three of
its values: `changed`, `visible` (None: all are) and `gradient` (None in a forward), and those of
scatters.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from flambeau_inductor.attention_options import KernelOptions
from flambeau_inductor.indexing.expressions import symbol
from flambeau_inductor.ir import Load, format_statement

if TYPE_CHECKING:
    from collections.abc import Mapping

    import sympy
    import torch

    from flambeau_inductor.ir import Body, Integer, Param

SCORES, GRADIENTS = "scores", "gradients"
LONGEST = 1 << 24
"""Positions below this are computed with in 32 bits; symbolic lengths are guarded to be."""
AXES = tuple(symbol(name) for name in ("i0", "i1", "i2", "r0"))


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor: its buffer, and how it is laid out there, in elements. `part_stride`: from a part
    of the keys to the next one, of what has results for each part.
    """

    buffer: str
    dtype: torch.dtype
    strides: tuple[sympy.Expr, ...]
    offset: sympy.Expr
    part_stride: sympy.Expr


@dataclass(frozen=True, slots=True)
class Blocks:
    """Which blocks of scores are computed: a BlockMask's counts and indices, by rows of blocks of
    queries (or of keys, for gradients of those). `full` ones are visible everywhere.
    """

    counts: Operand
    indices: Operand
    full_counts: Operand | None
    full_indices: Operand | None
    queries: int
    keys: int
    batches: Integer
    heads: Integer


@dataclass(frozen=True, slots=True)
class Scatter:
    """A tensor to which each visible score's `value` is added, at its `place` in memory."""

    into: Operand
    value: str
    place: str


@dataclass(frozen=True, slots=True)
class Attention:
    """What the kernel computes. Sizes: `batch`, `heads` of queries, `groups` of them that share a
    head of keys, `queries`, `keys`, and the `width` of a key and of a value. A forward may be cut
    into `parts` of the keys, which have separate results. If `packed`, `heads` are those of keys,
    and `queries` the rows of all heads that share one, `packed` of each head. A gradient of queries
    may do `scatters`, or nothing else.
    """

    form: str
    batch: Integer
    heads: Integer
    groups: int
    queries: Integer
    keys: Integer
    width: int
    value_width: int
    scale: float
    tf32: bool
    operands: tuple[tuple[str, Operand], ...]
    results: tuple[tuple[str, Operand], ...]
    blocks: Blocks | None
    body: Body
    changed: str
    visible: str | None
    gradient: str | None = None
    parts: int = 1
    packed: int = 0
    scatters: tuple[Scatter, ...] = ()
    options: KernelOptions = field(default_factory=KernelOptions)

    def operand(self, role: str) -> Operand:
        """The operand or result of a role."""
        return dict(self.operands + self.results)[role]

    def renamed(self, names: Mapping[str, str]) -> Attention:
        """The same in other buffers, which hold what the former ones held at the same places."""

        def moved(part: Operand) -> Operand:
            return replace(part, buffer=names.get(part.buffer, part.buffer))

        tables: dict[str, Any] = {
            each.name: moved(part)
            for each in fields(Blocks)
            if isinstance(part := getattr(self.blocks, each.name, None), Operand)
        }
        return replace(
            self,
            operands=tuple((role, moved(part)) for role, part in self.operands),
            results=tuple((role, moved(part)) for role, part in self.results),
            blocks=self.blocks and replace(self.blocks, **tables),
            body=tuple(
                replace(s, buffer=names.get(s.buffer, s.buffer)) if isinstance(s, Load) else s
                for s in self.body
            ),
            scatters=tuple(replace(one, into=moved(one.into)) for one in self.scatters),
        )


@dataclass(frozen=True, slots=True)
class AttentionKernel:
    """An Attention in canonical names, as a `LoopKernel` is one."""

    device: str
    params: tuple[Param, ...]
    sizes: tuple[sympy.Symbol, ...]
    attention: Attention
    hints: tuple[int, ...] = field(default=(), compare=False)

    @property
    def label(self) -> str:
        """What it does, for its name."""
        return f"attention_{self.attention.form}"

    @property
    def body(self) -> Body:
        """What becomes of a score."""
        return self.attention.body

    def __str__(self) -> str:
        one = self.attention
        head = f"attention {one.form} ({one.batch}, {one.heads}, {one.queries} | {one.keys})"
        names = f"  changed {one.changed}, visible {one.visible}, gradient {one.gradient}"
        return "\n".join([head, *(f"  {format_statement(s)}" for s in one.body), names])


@dataclass(frozen=True, slots=True)
class ScheduledAttention:
    """One launch of an AttentionKernel: the tensors for its params, and Dims for its sizes."""

    kernel: AttentionKernel
    buffers: tuple[str, ...]
    ints: tuple[int | str, ...]
    device: str
