"""Whether a Program can be recorded as a CUDA graph: the reason why not, in the user's terms.

A replay repeats what the device was asked to do, and nothing that the host did. So a Program is
launched plainly if it touches memory of the CPU, if a call needs a result on the host (sizes that
depend on data), or if a call runs code that we know nothing about.
"""

from __future__ import annotations

import torch

from flambeau_runtime.externs import argument_of, has_dropout, is_random, overload_of, refs_of
from flambeau_runtime.program import Extern, Launch, Program, Ref, Reserve

_HOST_READS = frozenset(
    {
        "nonzero", "masked_select", "unique", "_unique", "_unique2", "unique_dim",
        "unique_consecutive", "unique_dim_consecutive", "bincount", "_local_scalar_dense",
        "item", "equal", "repeat_interleave", "_ctc_loss", "ctc_loss", "segment_reduce",
        "histogram", "_histogramdd_bin_edges", "_histogramdd_from_bin_cts",
        "_histogramdd_from_bin_tensors", "_embedding_bag", "_embedding_bag_forward_only",
        "multinomial", "_sample_dirichlet", "binomial", "_cudnn_rnn", "_cudnn_rnn_backward",
        "_fft_c2c", "_fft_c2r", "_fft_r2c", "_pin_memory", "is_pinned",
    }
)  # fmt: skip
"""Operators of ATen that wait for the device, read its results on the host, or keep state on the
host between calls (plans, descriptors).
"""

_HOST_PREFIXES = ("linalg_", "_linalg_", "sparse_", "_sparse_", "lu_", "geqrf", "ormqr", "cholesky")
"""Solvers and sparse operators read sizes and error flags on the host."""


_COLLECTIVES = ("_c10d_functional", "_c10d_functional_autograd", "_dtensor")
"""The namespaces of collectives. NCCL destroys no communicator before all graphs are destroyed that
its collectives were recorded in, so `destroy_process_group` would wait for ever. A wait for work
that is in no recording would fail there, and never wait again.
"""

_KERNELS = "flambeau_kernel"
"""The namespace of operators that launch a Triton kernel of the program, which Triton has tuned in
the calls before. Those that run functions of the program around the launch have a tag.
"""

_MAX_SIZES = 64
_MAX_ELEMENTS = 960
"""What csrc/launcher.c reads on each call: sizes, and words of the states of generators."""


class Refusal(str):
    """Why a Program is not recorded, in words; `op` is the operator that is why ("aten.mm.out"), or
    "".
    """

    __slots__ = ("op",)
    op: str

    def __new__(cls, text: str, op: str = "") -> Refusal:
        result = super().__new__(cls, text)
        result.op = op
        return result


ON_THE_CPU = "it uses tensors of the CPU"


def refusal(program: Program, *, any_operator: bool) -> str | None:
    """Why the Program cannot be recorded, or None. Operators of others than ATen may do anything on
    the host; they are recorded only if `any_operator` is asked for.
    """
    passed = idle_tensors(program) | attention_seeds(program)
    devices = {tensor.device for tensor in program.tensors if tensor.name not in passed}
    if not devices:
        return "it uses no tensor"
    if any(torch.device(device).type != "cuda" for device in devices):
        return ON_THE_CPU
    if len(devices) > 1:
        return f"it uses several devices ({', '.join(sorted(devices))})"
    if any(symbol.is_float for symbol in program.symbols):
        return "it is given a float that changes from call to call"
    elements = sum(symbol.is_element for symbol in program.symbols)
    if len(program.symbols) - elements > _MAX_SIZES:
        return f"it has more than {_MAX_SIZES} symbolic sizes"
    if elements > _MAX_ELEMENTS:
        return f"it draws more than {_MAX_ELEMENTS // 2} times what its forward drew"
    if not any(isinstance(step, (Launch, Extern)) for step in program.steps):
        return "it launches nothing"
    for step in program.steps:
        if isinstance(step, Extern):
            reason = _operator_refusal(step.op, any_operator=any_operator)
            if reason is not None:
                return Refusal(reason, step.op)
    return None


def _operator_refusal(op: str, *, any_operator: bool) -> str | None:
    namespace, name, _ = op.split(".")
    if namespace == _KERNELS and torch.Tag.cudagraph_unsafe not in overload_of(op).tags:
        return None
    if namespace in _COLLECTIVES:
        return f"{op}: no process group ends while a graph of its collectives exists"
    if namespace != "aten":
        return None if any_operator else f"{op} may do anything on the host"
    if name.rstrip("_") in _HOST_READS or name.startswith(_HOST_PREFIXES):
        return f"{op} waits for the device or keeps state on the host"
    return None


def idle_tensors(program: Program) -> frozenset[str]:
    """The tensors of the CPU whose memory no step reads: attention without dropout makes a seed and
    an offset on the CPU, and hands them to its backward, which draws nothing either; with dropout,
    nobody reads them where there is no backward; kernels that draw are passed the elements of a
    generator's state.
    """
    read: set[str] = set()
    for step in program.steps:
        if isinstance(step, Extern):
            read.update(refs_of((step.args, step.kwargs)))
    idle = {program.inputs[symbol.input] for symbol in program.symbols if symbol.is_element} - read
    for step in program.steps:
        if isinstance(step, Reserve):
            idle.add(step.name)
        elif isinstance(step, Extern) and "attention" in step.op and not has_dropout(step):
            given = (argument_of(step, name) for name in ("philox_seed", "philox_offset"))
            idle.update(arg.name for arg in given if isinstance(arg, Ref))
            idle.update(filter(None, step.outputs))
        elif isinstance(step, Extern) and "attention" in step.op:
            kept = read.union(out for out in program.outputs if isinstance(out, str))
            idle.update(out for out in step.outputs if out is not None and out not in kept)
    return frozenset(
        tensor.name for tensor in program.tensors if tensor.name in idle and tensor.device == "cpu"
    )


_ATTENTION = "aten._scaled_dot_product_efficient_attention.default"
_ATTENTION_BACKWARD = "aten._scaled_dot_product_efficient_attention_backward.default"


def draws_seeds(step: Extern) -> bool:
    """Whether a call is an attention whose seed and offset, results 2 and 3, its backward reads on
    the CPU, and in a capture on the GPU.
    """
    return step.op == _ATTENTION and has_dropout(step)


def attention_seeds(program: Program) -> frozenset[str]:
    """The tensors of the CPU that are such seeds and offsets, and that no other call reads."""
    seeds: set[str] = set()
    read: set[str] = set()
    for step in program.steps:
        if not isinstance(step, Extern):
            continue
        given: set[str] = set()
        if step.op == _ATTENTION_BACKWARD and has_dropout(step):
            words = (argument_of(step, name) for name in ("philox_seed", "philox_offset"))
            given = {word.name for word in words if isinstance(word, Ref)}
        elif draws_seeds(step):
            seeds.update(filter(None, step.outputs[2:]))
        seeds |= given
        read.update(set(refs_of((step.args, step.kwargs))) - given)
    return frozenset(
        tensor.name
        for tensor in program.tensors
        if tensor.name in seeds - read and tensor.device == "cpu"
    )


def draws_random_numbers(program: Program) -> bool:
    """Whether a library call of the Program advances a random number generator."""
    return any(isinstance(step, Extern) and is_random(step) for step in program.steps)


_PRODUCTS = ("mm", "mv", "dot", "linear", "matmul", "einsum")


def may_call_blas(program: Program) -> bool:
    """Whether a library call of the Program may be a product, or anything."""
    operators = (step.op.split(".") for step in program.steps if isinstance(step, Extern))
    return any(
        namespace != "aten" or any(product in name for product in _PRODUCTS)
        for namespace, name, _ in operators
    )


def written_or_drawn_for(program: Program) -> frozenset[str]:
    """The tensors that no copy can stand in for: inputs that the Program writes to, and operands of
    dropout, which draws other numbers where they are not aligned as a copy is.
    """
    names = set(program.mutated)
    for step in program.steps:
        if isinstance(step, Extern) and step.op.startswith("aten.native_dropout."):
            names.update(refs_of((step.args, step.kwargs)))
    return frozenset(names)
