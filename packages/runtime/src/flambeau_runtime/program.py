"""Program: what to allocate, launch, call and free, as plain data.

The inductor emits a Program; this package prints, dumps and runs it. Nothing in it is a live
object: tensors are named, dtypes and devices are strings, sizes are ints or integer expressions
over the program's symbols ("s0*12 + 1").

    program(arg0: float32[s0, 768]) {
      symbols: s0 = arg0.shape[0]
      buf0 = allocate float32[s0, 768]
      launch cpp_fused_tanh_0(arg0, buf0; s0*768)
      buf1 = allocate float32[s0, 64]
      extern aten.mm.out(buf0, arg1, out=buf1)
      free buf0
      return (buf1,)
    }
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

Dim: TypeAlias = int | str
"""A size, stride, offset or launch argument: an int, or an expression over symbols in Python
syntax.

Allowed: names of symbols, integers, + - * // % and the calls min(a, b), max(a, b).
"""


# 1. What is named


@dataclass(frozen=True)
class Tensor:
    """A named tensor: an input, an allocated buffer, the result of an extern call, or a view of
    another tensor.

    Sizes, strides and offset are in elements. `dtype` is a torch name without prefix ("bfloat16"),
    `device` is "cpu" or "cuda:0".
    """

    name: str
    shape: tuple[Dim, ...]
    stride: tuple[Dim, ...]
    dtype: str
    device: str = "cpu"
    offset: Dim = 0


@dataclass(frozen=True)
class Symbol:
    """A symbolic size: its value in a call is input number `input`'s size at `dim` (or the int
    argument itself if dim is None).

    With `is_float` the argument is a float, and the symbol its 64 bits taken as an int64: what
    kernels are launched with. With `is_element` the argument is an int64 tensor of the CPU, and the
    symbol its element number `dim`; these follow all other symbols.
    """

    name: str
    input: int
    dim: int | None
    is_float: bool = False
    is_element: bool = False


@dataclass(frozen=True)
class Source:
    """One translation unit. `language` is "cpp" or "triton"; all the kernels of one unit are built
    together.
    """

    language: str
    text: str


@dataclass(frozen=True)
class Kernel:
    """One function of a Source.

    C++: `extern "C" void name(void *const *buffers, const int64_t *ints)`, the buffers at their
    data pointers (storage offset applied), the ints in the order of the launch. With {"checked":
    True} in `meta` it returns an int64_t instead, nonzero if it met an index out of bounds. Triton:
    `name(ptr, ptr, ..., int, int, ..., CONSTEXPR...)`, pointers first, then ints; `meta` holds what
    the build needs: {"signature": {arg: "*fp32" | "i32" | "i64"}, "constants": {arg: value},
    "num_warps": 4, "num_stages": 2, "divisible_by_16": [arg names]}, and where they matter
    "unaligned_constants" (those that differ where a pointer is no multiple of 16), "most_warps" (up
    to so many, the kernel is built with more warps if its values do not fit into the registers of
    fewer), "in_registers" (it is refused if they do not fit at last), "fp_fusion" (False: no
    product is contracted with a sum), "debug" (assertions are checked), "sanitize_overflow" (so are
    sums of integers that wrap) and "scratch": bytes of scratch memory of one program of the grid.
    Such a kernel takes no ints, and a launch passes it the scratch memory of all programs as one
    buffer more, the last.
    """

    name: str
    source: int
    meta: dict[str, Any] = field(default_factory=dict, hash=False)


# 2. What is done, in order


@dataclass(frozen=True)
class Ref:
    """A tensor as an argument of an extern call."""

    name: str


@dataclass(frozen=True)
class Allocate:
    """Make the named tensor, uninitialised; `reuse` names a dead buffer of the same byte size and
    device whose memory it takes over. With `in_place` both have one dtype too, and what is in the
    memory stays there: the kernel that comes next reads it under the new name.
    """

    name: str
    reuse: str | None = None
    in_place: bool = False


@dataclass(frozen=True)
class View:
    """Make the named tensor an as-strided view of `base`'s memory.

    Its declared offset counts from where `base`'s does: the executor applies the difference to
    where `base` really starts, so an input may start anywhere in its storage.
    """

    name: str
    base: str


@dataclass(frozen=True)
class Launch:
    """Run a kernel. `grid` is for GPU kernels: up to three Dims; CPU kernels parallelise inside.

    For people only: `computes` names the values of the compiled graph that the kernel computes,
    `lines` the user's lines behind them ("model.py:12").
    """

    kernel: str
    buffers: tuple[str, ...]
    ints: tuple[Dim, ...] = ()
    grid: tuple[Dim, ...] = ()
    computes: tuple[str, ...] = field(default=(), compare=False)
    lines: tuple[str, ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class Extern:
    """Call an ATen overload, named "aten.mm.out" or "aten.convolution.default".

    `args` and `kwargs` nest Ref, int, float, bool, str, None, lists and tuples, and these markers:
    SizeExpr("s0*2") for a symbolic int, Float("f1") for a given float, Dtype("float32"),
    Device("cpu"), Layout("strided"), MemoryFormat("channels_last"). `outputs` names the results
    (None: dropped).
    If `out` is set the overload is an out= variant that writes the named, already allocated
    tensors, given under these keyword names; then `outputs` is empty. `computes` and `lines` are as
    a Launch's.
    """

    op: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict, hash=False)
    outputs: tuple[str | None, ...] = ()
    out: tuple[tuple[str, str], ...] = ()
    computes: tuple[str, ...] = field(default=(), compare=False)
    lines: tuple[str, ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class Reserve:
    """Take random numbers from the default generator of a device: its offset advances by
    `increment`, and the named int64[2] tensor of the CPU is the generator's seed and its offset of
    before.

    `symbols` names the two; launches of later steps are passed them.
    """

    name: str
    device: str
    increment: Dim
    symbols: tuple[str, str]


@dataclass(frozen=True)
class Free:
    """Drop the program's reference to the named tensor; of an input, that of a caller which has
    handed its references over.
    """

    name: str


@dataclass(frozen=True)
class SizeExpr:
    """A symbolic int as an argument of an extern call."""

    text: str


@dataclass(frozen=True)
class Float:
    """A float argument of an extern call that the program is given, by its symbol's name."""

    text: str


@dataclass(frozen=True)
class Dtype:
    """A torch dtype as an argument of an extern call."""

    name: str


@dataclass(frozen=True)
class Device:
    """A torch device as an argument of an extern call."""

    name: str


@dataclass(frozen=True)
class Layout:
    """A torch layout as an argument of an extern call."""

    name: str


@dataclass(frozen=True)
class MemoryFormat:
    """A torch memory format as an argument of an extern call."""

    name: str


Step: TypeAlias = Allocate | View | Launch | Extern | Reserve | Free


# 3. The whole


@dataclass(frozen=True)
class Program:
    """A compiled graph. Calling it takes one argument per `inputs` entry (tensors, and ints or
    floats for number inputs) and returns a tuple with one entry per `outputs` entry: a tensor's
    name, a Dim under SizeExpr (an int result), or None.

    Inputs that a step writes to are mutated in place; `mutated` names them, and the executor bumps
    their version counters, each as often as `write_counts` says, which has an entry for each of
    them, or none where each is bumped once.
    """

    inputs: tuple[str, ...]
    tensors: tuple[Tensor, ...]
    symbols: tuple[Symbol, ...]
    sources: tuple[Source, ...]
    kernels: tuple[Kernel, ...]
    steps: tuple[Step, ...]
    outputs: tuple[str | SizeExpr | None, ...]
    mutated: tuple[str, ...] = ()
    name: str = "program"
    write_counts: tuple[int, ...] = ()
    private_outputs: int = 0
    """How many of the last outputs the caller of the compiled function never sees: what a forward
    saves for its backward.
    """

    prepared: Program | None = None
    """Computes the last of `inputs` from some of the others, under their names, before a call in
    which these are other tensors than before, or have been written to. A call does not pass them.
    """

    @property
    def given_inputs(self) -> tuple[str, ...]:
        """The inputs that a call passes."""
        count = len(self.prepared.outputs) if self.prepared else 0
        return self.inputs[: len(self.inputs) - count]

    def counted_writes(self) -> list[tuple[str, int]]:
        """Each mutated input, and how often its version counter is bumped."""
        counts = self.write_counts or (1,) * len(self.mutated)
        return list(zip(self.mutated, counts, strict=True))


def uses_gpu(program: Program) -> bool:
    """Whether a tensor of the program is on a GPU."""
    return any(tensor.device.startswith("cuda") for tensor in program.tensors)
