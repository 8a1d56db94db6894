"""What a statement of a chain can be, by class of operators: templates as in `fuzz/templates.py`.

More placeholders: `{x|y|z}` is one of these texts, `{s}` a size, `{w}` a Python number, often one
that the dtype does not hold, and `<<shape; dtype; values>>` a new input (values:
see `draw_numbers`; a shape is an expression). `{f}` and its like are drawn among recent variables.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class OperatorClass:
    """A class of operators. `exact`: results are bit for bit eager's if their inputs are."""

    exact: tuple[str, ...] = ()
    rounded: tuple[str, ...] = ()
    ndims: tuple[int, ...] = (0, 1, 1, 2, 2, 2, 3, 3, 4, 5)
    """Dims of an input of a program that is about this class."""


def _lines(text: str) -> tuple[str, ...]:
    return tuple(line.strip() for line in text.strip().splitlines())


POINTWISE = OperatorClass(
    exact=_lines("""
    torch.{abs|neg|relu|positive|nan_to_num|sgn}({n})
    torch.{floor|ceil|round|trunc|frac|sign|isnan|isinf|isfinite|signbit}({e})
    torch.{maximum|minimum|fmax|fmin|copysign|heaviside}({e}, {e2})
    {e} {<|>=|==|!=} {e2}
    {e} {<|>=|==|!=} {w}
    {n}.clamp({k} - 2, {k})
    {i}.clamp(max={w})
    torch.where({b}, {n}, {w})
    {n}.masked_fill({b}, {w})
    {i} {+|-|*|&} {i2}
    {i} {+|-|*} {w}
    {i} // {i2}
    {i} // {i2}.clamp(min=1)
    {i} % {w}
    {i} % {3|7|-5}
    torch.{bitwise_left_shift|bitwise_right_shift}({i}, {0|1|7|40})
    torch.{bitwise_and|bitwise_or|bitwise_xor|gcd}({i}, {i2})
    torch.{bitwise_not|logical_not}({b})
    {b} {&|^} {b2}
    torch.full_like({n}, {w})
    """),
    rounded=_lines("""
    {f} {+|-|*} {f2}
    {n} {+|-|*} {w}
    {n} / {c}
    {f} / {e}
    torch.{sin|cos|tanh|exp|exp2|expm1|square}({n})
    torch.{sigmoid|erf|erfc|atan|asinh|sinh|cosh|sinc|i0|rad2deg}({f})
    torch.{sqrt|rsqrt|reciprocal|log|log2|log1p}({e})
    torch.{acosh|atanh|asin|acos|erfinv|lgamma|digamma}({e})
    torch.logit({e}.abs())
    torch.special.{ndtr|log_ndtr|i1|bessel_j0|entr|erfcx}({e})
    F.{gelu|silu|mish|softplus|hardswish|logsigmoid|softsign|tanhshrink|relu6}({f})
    F.{elu|selu|celu}({f}.nan_to_num())
    F.{leaky_relu|softshrink}({f}, {0.1|1.3})
    torch.{atan2|hypot|logaddexp|logaddexp2}({f}, {f2})
    torch.{xlogy|nextafter|fmod|remainder|pow}({e}, {e2})
    torch.div({e}, {e2}, rounding_mode={None|'trunc'})
    torch.pow({e}, {0|1|2|3|-1|0.5|-2.5})
    torch.lerp({f}, {f2}, 0.3)
    torch.addc{mul|div}({f}, {f2}, {f2}, value=0.3)
    torch.polar({f}.abs(), {f})
    {z} {+|*|/} {z2}
    """),
)

REDUCTIONS = OperatorClass(
    exact=_lines("""
    {n}.{amax|amin}({d}, keepdim={True|False})
    {e}.{argmax|argmin}({d})
    {a}.{any|all}({d})
    {e}.{max|min}({d})[{0|1}]
    {b}.{max|min}({d})[0]
    {n}.{max|min}()
    {i}.{sum|prod}({d})
    {b}.sum({d})
    torch.aminmax({n}, dim={d})[{0|1}]
    torch.count_nonzero({e}, {d})
    torch.{median|nanmedian|mode}({e}.detach(), {d})[0]
    """),
    rounded=_lines("""
    {f}.{sum|mean|nansum|logsumexp}({d}, keepdim={True|False})
    {f}.{sum|mean}(dtype=torch.{float64|float32})
    {f}.{sum|mean|amax}(({d}, {d2}))
    {f}.{var|std}({d}, correction={0|1|2})
    torch.var_mean({f}, {d})[{0|1}]
    torch.prod({f}.clamp(-1.1, 1.1), {d})
    torch.norm({f}, p={1|2|3|0|float('inf')}, dim={d})
    torch.linalg.vector_norm({f}, {2|1|0.5|float('-inf')}, dim={d})
    torch.nanmean({f}, {d})
    torch.dist({f}, {f}.flip(0))
    F.{softmax|log_softmax|softmin}({f}, {d})
    F.softmax({f}, {d}, dtype=torch.{float64|float32})
    F.cross_entropy({f}, <<{f}.shape[:1]; torch.int64; below {f}.shape[1]>>{|, label_smoothing=0.1})
    {f} - {f}.mean({d}, keepdim=True)
    {f} / {f}.abs().amax({d}, keepdim=True).clamp(min=1e-6)
    F.{mse_loss|l1_loss|smooth_l1_loss|huber_loss}({f}, {f}.flip(0))
    """),
)

NORMS = OperatorClass(
    rounded=_lines("""
    F.layer_norm({f}, {f}.shape[-{1|2}:])
    F.layer_norm({f}, {f}.shape[-1:], <<{f}.shape[-1:]; {f}.dtype>>, <<{f}.shape[-1:]; {f}.dtype>>)
    F.rms_norm({f}, {f}.shape[-1:])
    F.rms_norm({f}, {f}.shape[-1:], <<{f}.shape[-1:]; {f}.dtype>>)
    F.group_norm({f}, {1|2|4|8}, <<{f}.shape[1:2]; {f}.dtype>>)
    F.batch_norm({f}, None, None, <<{f}.shape[1:2]; {f}.dtype>>, None, True)
    F.batch_norm({f}, <<{f}.shape[1:2]; {f}.dtype>>, <<{f}.shape[1:2]; {f}.dtype; uniform>>)
    F.instance_norm({f})
    F.local_response_norm({f}, {2|3})
    F.normalize({f}, p={1|2|3}, dim={d})
    """),
    ndims=(2, 2, 3, 4),
)

SCANS = OperatorClass(
    exact=_lines("""
    torch.{cummax|cummin}({e}, {d})[{0|1}]
    {i}.{cumsum|cumprod}({d})
    torch.sort({e}, dim={d}, descending={True|False}, stable=True)[{0|1}]
    torch.topk({e}.detach(), {1|2|5|40}, {d}, {True|False})[0]
    torch.kthvalue({e}.detach(), {k} + 1, {d})[0]
    torch.isin({e}, {e}.flatten()[:3])
    torch.msort({e}.detach())
    """),
    rounded=_lines("""
    {f}.{cumsum|logcumsumexp}({d})
    {f}.cumsum({d}, dtype=torch.{float64|float32})
    {f}.flip({d}).cumsum({d}).flip({d})
    torch.cumprod({f}.clamp(-1.05, 1.05), {d})
    torch.diff({f}, dim={d})
    torch.trapezoid({f}, dim={d})
    torch.{cummax|cummin}({f}.detach(), {d})[0]
    torch.sort({f}.detach(), {d})[0]
    """),
    ndims=(1, 1, 2, 2, 3),
)

POOLS = OperatorClass(
    exact=_lines("""
    F.max_pool{1|2|3}d({f}, {2|3}, {1|2|3}, {0|1}, {1|2})
    F.max_pool{1|2|3}d({f}, {2|3}, {1|2}, {0|1}, 1, True)
    F.adaptive_max_pool{1|2|3}d({f}, {1|2|3|5|7})
    F.max_unpool1d(*F.max_pool1d({e}, 2, 2, return_indices=True), 2, 2, output_size={e}.shape)
    F.max_unpool2d(*F.max_pool2d({e}, 2, 2, return_indices=True), 2, 2, output_size={e}.shape)
    F.interpolate({f}, scale_factor={0.3|0.5|1.7|2.0|3.1}, mode={'nearest'|'nearest-exact'})
    F.pad({n}, ({k}, {k}), {'reflect'|'replicate'|'circular'})
    F.{pixel_shuffle|pixel_unshuffle}({a}, 2)
    """),
    rounded=_lines("""
    F.avg_pool{1|2|3}d({f}, {2|3}, {1|2|3}, {0|1}, {True|False}, {True|False})
    F.adaptive_avg_pool{1|2|3}d({f}, {1|2|3|5|7|11})
    F.interpolate({f}, size={s}, mode={'linear'|'area'|'area'})
    F.interpolate({f}, size=({s}, {s}), mode={'bilinear'|'bicubic'|'area'|'area'})
    F.interpolate({f}.nan_to_num(0, 9, -9), size=({s}, {s}), mode='bilinear', antialias=True)
    F.interpolate({f}, size=({s}, {s}, {s}), mode={'trilinear'|'area'})
    F.interpolate({f}, scale_factor={0.3|1.7|2.0}, mode='bilinear', align_corners={True|False})
    F.lp_pool{1|2}d({f}.abs() + 0.1, 2.0, {2|3})
    F.grid_sample({f}, <<({f}.shape[0], {s}, {s}, 2); {f}.dtype; uniform>>, align_corners=False)
    """),
    ndims=(3, 4, 4, 4, 5),
)

INDEXING = OperatorClass(
    exact=_lines("""
    <<(2,); {f}.dtype>>[({f} > 0).long()]
    <<(3,); {f}.dtype>>[torch.where({f} > 0, {0|1|-1}, 2)]
    {a}[<<({s},); torch.int64; within {a}.shape[0]>>]
    {a}[:, <<({s},); torch.int{32|64}; within {a}.shape[1]>>]
    torch.gather({a}, {d}, <<{a}.shape; torch.int64; below {a}.shape[{d}]>>)
    torch.take_along_dim({a}, <<{a}.shape; torch.int64; below {a}.shape[{d}]>>, {d})
    torch.scatter({n}, {d}, <<{n}.shape; torch.int64; below {n}.shape[{d}]>>, {k})
    {a}.index_select({d}, <<({s},); torch.int{32|64}; below {a}.shape[{d}]>>)
    {n}.index_fill({d}, <<({s},); torch.int64; below {n}.shape[{d}]>>, {k})
    torch.take({a}, <<({s}, 2); torch.int64; below {a}.numel()>>)
    F.embedding(<<({s}, {s}); torch.int64; below {f}.shape[0]>>, {f}{|, padding_idx=1})
    {n}.masked_scatter({b}, {n})
    torch.searchsorted({e}.nan_to_num().sort()[0], {e}, right={True|False})
    torch.bincount(<<({s},); torch.int64; below 50>>, minlength=50)
    """),
    rounded=_lines("""
    {f}.scatter_add({d}, <<{f}.shape; torch.int64; below {f}.shape[{d}]>>, {f})
    {f}.scatter_reduce({d}, <<{f}.shape; torch.int64; below {f}.shape[{d}]>>, {f}, {'mean'|'amax'})
    {f}.index_add(0, <<{f}.shape[:1]; torch.int64; below {f}.shape[0]>>, {f}, alpha=2)
    torch.index_put({f}, (<<{f}.shape[:1]; torch.int64; within {f}.shape[0]>>,), {f}, True)
    F.embedding_bag(<<({s}, {s}); torch.int64; below {f}.shape[0]>>, {f}, mode={'sum'|'mean'|'max'})
    """),
    ndims=(1, 2, 2, 3),
)

VIEWS = OperatorClass(
    exact=_lines("""
    {a}.{transpose(0, -1)|movedim(0, -1)|squeeze()|flatten()|contiguous()|clone()}
    {a}.{reshape(-1, 2)|reshape(2, -1)|unsqueeze(0)|flip(-1)|detach()|mT}
    {a}[{1:|::2|-3:|..., 1:|..., ::2|:, 1::3|..., -1}]
    {a}.{narrow({d}, 0, 1)|select({d}, -1)|unfold({d}, 2, 1)|roll({k}, {d})}
    {a}.{unsqueeze(0).expand(3, *{a}.shape)|repeat(2, *[1] * {a}.ndim)|diagonal(0, 0, 1)}
    {a}.{tril()|triu(1)|rot90()|repeat_interleave(2, {d})|diag_embed()}
    {a}.{chunk(3, {d})|split(2, {d})|unbind({d})}[0]
    torch.{cat|stack}([{a}, {a2}], {d})
    torch.cat([{a}, {a} * 2, {a}], {d})
    F.pad({n}, {(1, 0)|(2, 3)|(-1, 1)|(0, 1, 1, 0)}, value={k})
    {a}.contiguous().as_strided((3, 2), (1, 2), 1)
    torch.slice_scatter({a}, {a}[:1] * 2, 0, 0, 1)
    """),
)

CASTS = OperatorClass(
    exact=_lines("""
    {e}.nan_to_num(0, 99, -99).clamp(-100, 100).to(torch.{int8|int32|int64|bool})
    {i}.to(torch.{int8|uint8|int16|int32|bool})
    {n}.to(torch.float64)
    {e}.to(torch.{float8_e4m3fn|float8_e5m2}).to(torch.float32)
    {e}.detach().clamp(-100, 100).to(torch.{float8_e4m3fn|float8_e5m2})
    {e}.contiguous().view(torch.{uint8|int16|int32|int64})
    """),
    rounded=_lines("""
    {n}.to(torch.{float32|bfloat16|float16|float64})
    {i}.to(torch.{float32|bfloat16|float16})
    """),
)

PRODUCTS = OperatorClass(
    rounded=_lines("""
    {f} @ <<({f}.shape[-1], {s}); {f}.dtype>>
    <<({s}, {f}.shape[0]); {f}.dtype>> @ {f}
    {f} @ {f}.mT
    F.linear({f}, <<({s}, {f}.shape[-1]); {f}.dtype>>)
    F.linear({f}, <<(17, {f}.shape[-1]); {f}.dtype>>, <<(17,); {f}.dtype>>)
    torch.addmm(<<({s},); {f}.dtype>>[:1], {f}, <<({f}.shape[-1], {s}); {f}.dtype>>, beta={0|0.5|1})
    torch.bmm({f}, <<({f}.shape[0], {f}.shape[-1], {s}); {f}.dtype>>)
    F.linear({f}, <<(33, {f}.shape[-1]); torch.int8; whole_range>>.to({f}.dtype) * 0.01)
    F.linear({f}, <<(33, {f}.shape[-1]); torch.int8>>.to({f}.dtype)) * <<(33,); {f}.dtype>>
    F.linear({f}, (<<(9, {f}.shape[-1]); torch.uint8; whole_range>> & 15).to({f}.dtype) - 8)
    {f}[<<({s},); torch.int64; within {f}.shape[0]>>] @ <<({f}.shape[-1], {s}); {f}.dtype>>
    {f}.masked_fill({f} < 0, 0) @ <<({f}.shape[-1], {s}); {f}.dtype>>
    F.gelu(F.linear({f}, <<({s}, {f}.shape[-1]); {f}.dtype>>)).sum(-1)
    F.linear({f}, <<(65, {f}.shape[-1]); {f}.dtype>>).softmax(-1)
    torch.outer({f}.flatten()[:129], {f2}.flatten()[:65])
    torch.einsum('{ik,jk->ij|ki,kj->ij|ij,jk->ki}', {f}, {f2})
    torch.mv({f}, <<{f}.shape[-1:]; {f}.dtype>>)
    F.conv1d({f}, <<(5, {f}.shape[1], {1|3}); {f}.dtype>>, padding={0|1})
    F.conv2d({f}, <<({s}, {f}.shape[1], {1|3}, {1|2}); {f}.dtype>>, stride={1|2}, padding={0|1})
    F.conv_transpose2d({f}, <<({f}.shape[1], {s}, 2, 3); {f}.dtype>>, stride={1|2})
    torch.cdist({f}, {f} + 1)
    """),
    ndims=(1, 2, 2, 2, 2, 3, 3, 4),
)

IN_PLACE = _lines("""
{v}.add_({c})
{v}.mul_({f})
{v}[::2].neg_()
{v}[1:].view_as({v}[1:]).mul_(2)
{v}[..., ::2][1:].add_(1)
{v}[..., :1].fill_({w})
{v}.transpose(0, -1)[0].zero_()
{v}.view(-1)[1:3].mul_(3)
{v}.copy_({v}.flip(-1))
{v}.clamp_(-1, 1)
{v}.masked_fill_({v} > 1, 0)
{v}.cumsum_(-1)
{v}.sub_({v}.mean())
{v}[1:] += {v}[:-1] * 2
{v}[..., 0] = {f}[..., -1]
{v}.index_fill_(0, <<(3,); torch.int64; below {v}.shape[0]>>, 4)
{v}[<<(3,); torch.int64; within {v}.shape[0]>>] = {c}
{v}.unsqueeze(0).squeeze(0).t_()
torch.mm({f}, {f2}, out={v})
""")
"""What writes to a variable, which may be an input or share its memory with others."""

CLASSES = {
    "pointwise": POINTWISE,
    "reductions": REDUCTIONS,
    "norms": NORMS,
    "scans": SCANS,
    "pools": POOLS,
    "indexing": INDEXING,
    "views": VIEWS,
    "casts": CASTS,
    "products": PRODUCTS,
}
