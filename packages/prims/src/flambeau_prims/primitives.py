"""The primitives: the closed set of operators that compilers of graphs must know. The whole set is
on this page.

    y: f32[4, 8] = prims.mul(x, 0.5)
    s: f32[4] = prims.sum(y, (1,))

Laws that hold for every primitive:

1. Called positionally.  Sizes and indices may be ints or `Expr`s; dims are non-negative ints.
2. POINTWISE: tensor operands have one shape and one dtype, `where`'s condition is bool of that
   shape. A number (bool, int, float, Expr or FloatExpr) may stand for an operand, but not for all
   of them; it is taken in the tensor operands' dtype.
3. float16 and bfloat16 are storage types: only `cast`, `where` and the kinds that move data take
   them. Arithmetic and reductions are in float32 or wider; decompositions cast up first and back
   after, as eager's kernels do.
4. REDUCTIONS drop their dims, accumulate in the operand's dtype, and give the identity (where there
   is one) for empty dims. SCANS accumulate in it too, from the last element on if `reverse` is set.
5. VIEWS are index maps: the result's Spec describes the operand's memory. `reshape` is a view where
   strides allow, and otherwise a fresh row-major tensor.
6. The results of all other kinds are fresh memory, laid out as the Spec of the Value they produce
   says: `infer` gives a default that whoever builds the graph may replace by other dense strides.

A primitive called on real tensors computes its reference result in plain eager PyTorch
(`evaluate.run_graph` runs graphs). What is not here (matrix products, convolution, attention,
pooling, complex arithmetic, the state of random generators) stays an ATen OpOverload in the graph,
which means "call ATen".
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims import primitive_eager as eager
from flambeau_prims import primitive_specs as specs

if TYPE_CHECKING:
    from collections.abc import Callable

    from flambeau_prims.spec import Spec


# 0. Dtypes

DTYPES = frozenset({
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32,
    torch.int16, torch.int8, torch.uint8, torch.bool,
})  # fmt: skip
"""The dtypes that primitives take. Operators on tensors of others (complex, uint16 and wider) stay
calls of ATen; `clone`, which only moves, takes them too.
"""

FLOAT8 = frozenset({
    torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz,
})  # fmt: skip
STORED_DTYPES = DTYPES | FLOAT8
"""With those that kernels load, store and cast; only `cast`, `clone` and views take them."""

# 1. What a primitive is


class Kind(enum.Enum):
    """What a compiler does with a primitive."""

    POINTWISE = "pointwise"  # one result element from the operands' elements at the same place
    REDUCTION = "reduction"  # folds whole dims away
    SCAN = "scan"  # each element from those up to its place along one dim
    SORT = "sort"  # each element from all those along one dim
    VIEW = "view"  # an index map over the operand; moves nothing
    INDEX = "index"  # fresh result, each element read from a computed place
    FACTORY = "factory"  # fresh result from no tensor on its device
    LAYOUT = "layout"  # the same elements in new memory
    SCATTER = "scatter"  # fresh result, written at computed places


@dataclass(frozen=True, eq=False)
class Prim:
    """One primitive operator; `prims.add` in text.

    `params` names the positional parameters, each with its type (see `PARAM_TYPES`).
    `infer(*args)` takes Specs for tensors and gives the result's Spec; it raises TypeError
    or ValueError when the call breaks a law. `reference(*args)` computes the result on real
    tensors.
    """

    name: str
    kind: Kind
    params: tuple[tuple[str, str], ...]
    infer: Callable[..., Spec] = field(repr=False)
    reference: Callable[..., Any] = field(repr=False)
    meaning: str = ""

    def __call__(self, *args: Any) -> Any:
        return self.reference(*args)

    def __str__(self) -> str:
        return f"prims.{self.name}"

    __repr__ = __str__

    def __reduce__(self) -> tuple[object, ...]:
        return (_by_name, (self.name,))


PARAM_TYPES = {
    "tensor": "a Value",
    "tensors": "a non-empty list of Values",
    "operand": "a Value or a number (law 2)",
    "indices": "a list with a Value of int64 or None for each leading dim",
    "dim": "an int in [0, ndim)",
    "dims": "a tuple of distinct such ints",
    "size": "an int or Expr",
    "sizes": "a tuple of ints or Exprs",
    "number": "a bool, int, float, Expr or FloatExpr",
    "flag": "a bool",
    "dtype": "a torch.dtype",
    "device": "a torch.device",
    "pattern": "a name of `philox.PATTERNS`",
    "mode": "mul, max or min",
}

PRIMS: dict[str, Prim] = {}
"""All primitives by name, in the order of this page."""


def _by_name(name: str) -> Prim:
    return PRIMS[name]


def _declare(kind: Kind, signature: str, meaning: str = "", infer: Any = None) -> Prim:
    """Declare the primitive of `signature`, e.g. "sum(x: tensor, dims: dims)".

    Its Spec is that of the function of its name in `primitive_specs`, unless `infer` is given.
    """
    name, _, rest = signature.removesuffix(")").partition("(")
    params = tuple(tuple(item.split(": ")) for item in rest.split(", "))
    unknown = [kind for _, kind in params if kind not in PARAM_TYPES]
    if name in PRIMS or unknown:
        raise ValueError(
            f"primitive {name}: declared twice, or of unknown parameter types {unknown}"
        )
    infer = infer or getattr(specs, "slice_" if name == "slice" else name)
    prim = Prim(name, kind, params, infer, eager.reference(name), meaning)  # type: ignore[arg-type]
    PRIMS[name] = prim
    return prim


_pointwise = partial(_declare, Kind.POINTWISE)
_reduction = partial(_declare, Kind.REDUCTION)
_scan = partial(_declare, Kind.SCAN)
_sort = partial(_declare, Kind.SORT)
_view = partial(_declare, Kind.VIEW)
_index = partial(_declare, Kind.INDEX)
_scatter = partial(_declare, Kind.SCATTER)
_factory = partial(_declare, Kind.FACTORY)
_layout = partial(_declare, Kind.LAYOUT)


def _unary(name: str, meaning: str = "", infer: Any = specs.float_math) -> Prim:
    return _pointwise(f"{name}(x: operand)", meaning, infer)


def _binary(name: str, meaning: str, infer: Any = specs.arithmetic) -> Prim:
    return _pointwise(f"{name}(a: operand, b: operand)", meaning, infer)


# 2. Pointwise: unary
# The default domain is float32 and float64; `arithmetic` adds the integers, `any_real` adds bool.

neg = _unary("neg", "-x", specs.arithmetic)
abs = _unary("abs", "|x|", specs.arithmetic)
sign = _unary("sign", "-1, 0 or 1", specs.arithmetic)
exp = _unary("exp", "e**x")
exp2 = _unary("exp2", "2**x")
expm1 = _unary("expm1", "e**x - 1")
log = _unary("log", "ln x")
log2 = _unary("log2", "log to base 2")
log10 = _unary("log10", "log to base 10")
log1p = _unary("log1p", "ln(1 + x)")
sqrt = _unary("sqrt", "correctly rounded")
rsqrt = _unary("rsqrt", "1 / sqrt(x)")
reciprocal = _unary("reciprocal", "1 / x")
sin = _unary("sin")
cos = _unary("cos")
tan = _unary("tan")
asin = _unary("asin")
acos = _unary("acos")
atan = _unary("atan")
sinh = _unary("sinh")
cosh = _unary("cosh")
tanh = _unary("tanh")
asinh = _unary("asinh")
acosh = _unary("acosh")
atanh = _unary("atanh")
erf = _unary("erf")
erfc = _unary("erfc", "1 - erf(x), accurate for large x")
lgamma = _unary("lgamma", "ln |gamma(x)|")
fast_log = _unary("fast_log", "ln x; on a GPU as its approximate instruction has it", specs.single)
fast_sin = _unary("fast_sin", "sin x; as fast_log", specs.single)
fast_cos = _unary("fast_cos", "cos x; as fast_log", specs.single)
floor = _unary("floor")
ceil = _unary("ceil")
round = _unary("round", "to the nearest integer, ties to even")
trunc = _unary("trunc", "toward zero")
isnan = _unary("isnan", "", specs.float_predicate)
isinf = _unary("isinf", "", specs.float_predicate)
signbit = _unary(
    "signbit", "true for -0.0 and for a NaN with the sign bit", specs.arithmetic_predicate
)
bitwise_not = _unary("bitwise_not", "~x; for bool, not x", specs.bits)

# 3. Pointwise: binary, ternary, cast

add = _binary("add", "a + b; integers wrap")
sub = _binary("sub", "a - b; integers wrap")
mul = _binary("mul", "a * b; integers wrap")
div = _binary("div", "a / b, correctly rounded", specs.float_math)
floor_divide = _binary("floor_divide", "quotient rounded toward -inf, as Python's //")
trunc_divide = _binary("trunc_divide", "quotient rounded toward zero, as C's integer /")
fmod = _binary("fmod", "remainder with the sign of a, as C's % and fmod")
remainder = _binary("remainder", "remainder with the sign of b, as Python's %")
pow = _binary(
    "pow", "a**b; integer powers of integers (negative exponent: 0, or +-1 for bases +-1)"
)
atan2 = _binary("atan2", "angle of (x=b, y=a)", specs.float_math)
maximum = _binary("maximum", "NaN if either is NaN", specs.any_real)
minimum = _binary("minimum", "NaN if either is NaN", specs.any_real)
copysign = _binary("copysign", "|a| with the sign bit of b", specs.float_math)
eq = _binary("eq", "a == b", specs.comparison)
ne = _binary("ne", "a != b (true for NaN)", specs.comparison)
lt = _binary("lt", "a < b", specs.comparison)
le = _binary("le", "a <= b", specs.comparison)
gt = _binary("gt", "a > b", specs.comparison)
ge = _binary("ge", "a >= b", specs.comparison)
bitwise_and = _binary("bitwise_and", "a & b; for bool, and", specs.bits)
bitwise_or = _binary("bitwise_or", "a | b; for bool, or", specs.bits)
bitwise_xor = _binary("bitwise_xor", "a ^ b; for bool, !=", specs.bits)
shift_left = _binary(
    "shift_left", "a << b; 0 when b is negative or not below the width", specs.integers
)
shift_right = _binary(
    "shift_right",
    "arithmetic a >> b; the sign fill when b is negative or not below the width",
    specs.integers,
)
fma = _pointwise(
    "fma(a: operand, b: operand, c: operand)", "a * b + c, rounded once", specs.float_math
)
where = _pointwise("where(condition: tensor, a: operand, b: operand)", "a if condition else b")
cast = _pointwise(
    "cast(x: tensor, dtype: dtype)",
    "nearest value, ties to even; float to integer truncates; to bool: x != 0",
)

# 4. Reductions

_EXTREME = "NaN if any is NaN; dims must not be empty"

sum = _reduction("sum(x: tensor, dims: dims)", "0 for empty dims", specs.reduce_arithmetic)
prod = _reduction("prod(x: tensor, dims: dims)", "1 for empty dims", specs.reduce_arithmetic)
amax = _reduction("amax(x: tensor, dims: dims)", _EXTREME, specs.reduce_any_real)
amin = _reduction("amin(x: tensor, dims: dims)", _EXTREME, specs.reduce_any_real)
any = _reduction("any(x: tensor, dims: dims)", "of bool; false for empty dims", specs.reduce_bool)
all = _reduction("all(x: tensor, dims: dims)", "of bool; true for empty dims", specs.reduce_bool)
sum_exp = _reduction(
    "sum_exp(x: tensor, dims: dims)",
    "sum of exp(x - amax(x)); NaN if that is infinite; dims must not be empty",
    specs.reduce_float,
)
mean = _reduction(
    "mean(x: tensor, dims: dims)",
    "an element plus the mean of the distances to it: of equals that element; NaN for empty dims",
    specs.reduce_float,
)
squared_deviations = _reduction(
    "squared_deviations(x: tensor, dims: dims)",
    "sum of (x - mean(x))**2; 0 for empty dims",
    specs.reduce_float,
)
argmax = _reduction(
    "argmax(x: tensor, dim: dim)",
    "int64 index of the greatest element (NaN is greatest), the first of equals",
    specs.reduce_index,
)
argmin = _reduction(
    "argmin(x: tensor, dim: dim)",
    "int64 index of the least element (NaN is least), the first of equals",
    specs.reduce_index,
)

# 5. Scans and sorts of rows

cumsum = _scan("cumsum(x: tensor, dim: dim, reverse: flag)", "running sum", specs.scan_arithmetic)
cumprod = _scan(
    "cumprod(x: tensor, dim: dim, reverse: flag)", "running product", specs.scan_arithmetic
)
cummax = _scan(
    "cummax(x: tensor, dim: dim, reverse: flag)",
    "running maximum; of equals the last; NaN from the first NaN on",
    specs.scan_any_real,
)
cummin = _scan(
    "cummin(x: tensor, dim: dim, reverse: flag)",
    "running minimum; of equals the last; NaN from the first NaN on",
    specs.scan_any_real,
)
logcumsumexp = _scan(
    "logcumsumexp(x: tensor, dim: dim, reverse: flag)", "running ln of the sum of exponentials",
    specs.scan_floats,
)  # fmt: skip
sort = _sort(
    "sort(x: tensor, dim: dim, descending: flag, count: size)",
    "the first `count` of the sorted elements; stable; NaN is greatest",
    specs.sort_values,
)
argsort = _sort(
    "argsort(x: tensor, dim: dim, descending: flag, count: size)",
    "the int64 indices of what `sort` gives, equals in their order",
    specs.sort_index,
)

# 6. Views

expand = _view(
    "expand(x: tensor, shape: sizes)", "new leading dims, and dims of size 1 repeated (stride 0)"
)
permute = _view("permute(x: tensor, dims: dims)", "dim i is x's dims[i]")
reshape = _view("reshape(x: tensor, shape: sizes)", "the same elements in row-major order; no -1")
unsqueeze = _view("unsqueeze(x: tensor, dim: size)", "new dim of size 1")
squeeze = _view("squeeze(x: tensor, dims: dims)", "drop dims, all of size 1")
slice = _view(
    "slice(x: tensor, dim: dim, start: size, stop: size, step: size)",
    "elements start, start+step, ... below stop; 0 <= start <= stop <= size, step > 0",
)
select = _view("select(x: tensor, dim: dim, index: size)", "0 <= index < size; drops the dim")
diagonal = _view(
    "diagonal(x: tensor, offset: size, dim1: dim, dim2: dim)",
    "elements (i, i + offset) of dims (dim1, dim2), as a new last dim",
)
as_strided = _view(
    "as_strided(x: tensor, shape: sizes, stride: sizes, offset: size)",
    "window on the memory of x, which is an input, an extern result or a fresh result "
    "(never itself a view)",
)

# 7. Index: fresh results read from computed places

flip = _index("flip(x: tensor, dims: dims)", "reversed along dims")
gather = _index(
    "gather(x: tensor, dim: dim, index: tensor)",
    "x at index along dim, index's own place elsewhere; int64 in [0, size); index.shape <= "
    "x.shape outside dim",
)
index = _index(
    "index(x: tensor, indices: indices)",
    "aten.index.Tensor with int64 indices of one shape, in [-size, size); None keeps a dim",
)
searchsorted = _index(
    "searchsorted(boundaries: tensor, x: tensor, right: flag)",
    "how many boundaries (ascending along the last dim; of one dim, or of x's leading dims) are "
    "less than each x, or also equal to it; all for NaN",
)
pad = _index(
    "pad(x: tensor, lows: sizes, highs: sizes, value: number)",
    "`value` around x; one low and one high a dim, none negative",
)
cat = _index("cat(xs: tensors, dim: dim)", "joined along dim; one dtype; shapes agree elsewhere")

# 8. Scatter: fresh results written at computed places

index_put = _scatter(
    "index_put(x: tensor, indices: indices, source: tensor, accumulate: number)",
    "x with `source` at, or added at, the places that `index` would read; of places that are named "
    "several times a CPU adds in order, or takes the last, and a GPU in any order, or any",
)

index_reduce = _scatter(
    "index_reduce(x: tensor, indices: indices, source: tensor, mode: mode)",
    "as index_put, but `source` is multiplied into (mul), or the greater (max) or lesser (min) of "
    "it and of what is at the place, NaN if either is; on a CPU only",
)

# 9. Factories

full = _factory("full(shape: sizes, value: number, dtype: dtype, device: device)")
empty = _factory("empty(shape: sizes, dtype: dtype, device: device)", "elements undefined")
iota = _factory(
    "iota(length: size, start: size, step: size, dtype: dtype, device: device)",
    "start + i * step, of an integer dtype",
)
random_words = _factory(
    "random_words(state: tensor, shape: sizes, threads: size, pattern: pattern, word: size, "
    "device: device)",
    "word number `word` of each element of a draw of `threads` threads, in row-major order: int64 "
    "in [0, 2**32); state is (seed, offset), int64[2] on the CPU",
)
random_member = _factory(
    "random_member(shape: sizes, threads: size, pattern: pattern, device: device)",
    "the place of each element among those that share its words: int64",
)

# 10. Layout

clone = _layout("clone(x: tensor)", "materialise, in the strides of the result's Spec")
to_device = _layout("to_device(x: tensor, device: device)", "copy to another device")
