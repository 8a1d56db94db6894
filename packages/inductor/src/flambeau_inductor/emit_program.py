"""Emit a Program: kernels through the code generators, and the steps that allocate, launch, call
and free.

group add+tanh (writes buf0), extern aten.mm.out(t(buf0), arg1, out=buf1)
->  allocate buf0; launch cpu_add_tanh_0(arg0, buf0); view0 = view of buf0; allocate buf1; extern
aten.mm.out(...); free ...
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from flambeau_inductor.codegen.base import Emitted, backend_for
from flambeau_inductor.codegen.cpp.fixed_kernels import FIXED_KERNELS, fixed_source
from flambeau_inductor.codegen.triton.attention_backend import emit_attention
from flambeau_inductor.codegen.triton.rounded_products import Ancestors
from flambeau_inductor.codegen.triton.user_kernel import lower_user_launch
from flambeau_inductor.lowering.elements import host_symbol
from flambeau_inductor.lowering.extern import op_name
from flambeau_inductor.nodes import ExternCall, SizeRef, TensorRef
from flambeau_inductor.prepare import split_prepared
from flambeau_inductor.scheduler.build_attention import build_attention
from flambeau_inductor.scheduler.build_kernel import build_kernel
from flambeau_inductor.scheduler.combine import combinable
from flambeau_inductor.scheduler.memory import Allocation
from flambeau_prims.gpu_draws import reserve_random
from flambeau_prims.kernel_launches import launch_named
from flambeau_prims.size_floats import FloatExpr, as_float
from flambeau_runtime import program as rt

if TYPE_CHECKING:
    from flambeau_inductor.attention import ScheduledAttention
    from flambeau_inductor.codegen.base import KernelBackend
    from flambeau_inductor.codegen.triton.user_kernel import UserLaunch
    from flambeau_inductor.ir import ScheduledKernel
    from flambeau_inductor.nodes import Lowered
    from flambeau_inductor.options import InductorOptions
    from flambeau_inductor.schedule import Schedule
    from flambeau_inductor.scheduler.groups import Group
    from flambeau_prims.kernel_launches import LaunchOperator
    from flambeau_prims.spec import Spec

_Step = TypeVar("_Step", bound=rt.Step)


def emit_program(
    schedule: Schedule, options: InductorOptions, backends: dict[str, KernelBackend] | None = None
) -> rt.Program:
    """The Program of a schedule. `backends`: device type -> generator, instead of the usual."""
    before, schedule = split_prepared(schedule, options)
    program = _Emitter(schedule, options, backends or {}).emit()
    if before is None:
        return program
    return replace(program, prepared=_Emitter(before, options, backends or {}).emit())


def build_kernels(schedule: Schedule, options: InductorOptions) -> dict[int, ScheduledKernel]:
    """Step number -> the kernel to launch; none where no one reads the results."""
    lowered = schedule.lowered
    dtypes = {name: buffer.spec.dtype for name, buffer in lowered.buffers.items()}
    kernels = {
        step: replace(
            build_kernel(
                group,
                schedule.memory.internal,
                dtypes,
                lowered.sizes,
                options,
                schedule.memory.overwritten(step),
            ),
            tiling=group.tiling,
        )
        for step, group in enumerate(schedule.groups)
        if not group.is_extern
    }
    contracts = not options.strict and any(k.device != "cpu" for k in kernels.values())
    ancestors = Ancestors(lowered.nodes if contracts else ())

    def described(step: int, launch: ScheduledKernel) -> ScheduledKernel:
        replaced = schedule.memory.overwritten(step)
        rounded = ancestors.rounded(launch, replaced) if contracts else ()
        narrow = _is_narrow(launch, lowered)
        return replace(launch, kernel=replace(launch.kernel, narrow=narrow, rounded=rounded))

    return {step: described(step, k) for step, k in kernels.items() if k.kernel.params}


def build_attention_kernels(schedule: Schedule) -> dict[int, ScheduledAttention]:
    """Step number -> the kernel to launch for attention."""
    lowered = schedule.lowered
    dtypes = {name: buffer.spec.dtype for name, buffer in lowered.buffers.items()}
    return {
        step: build_attention(call, dtypes, lowered.sizes)
        for step, group in enumerate(schedule.groups)
        if isinstance(call := group.nodes[0], ExternCall) and call.attention is not None
    }


def _is_narrow(launch: ScheduledKernel, lowered: Lowered) -> bool:
    """Whether 32 bits hold every index into the buffers of a kernel. Kernels on a CPU index with
    64, and stay equal whatever the sizes are.
    """
    if launch.device == "cpu" or launch.kernel.sizes:
        return False
    specs = [lowered.buffers[name].spec for name in launch.buffers]
    if not all(isinstance(n, int) for spec in specs for n in (*spec.shape, *spec.stride)):
        return False
    extents = (
        sum((n - 1) * s for n, s in zip(spec.shape, spec.stride, strict=True)) for spec in specs
    )
    return all(extent < 2**31 - 1 for extent in extents)


def with_computed(step: _Step, groups: list[Group]) -> _Step:
    """A launch or a call of ATen, with the values that it computes and the user's lines."""
    if not isinstance(step, (rt.Launch, rt.Extern)):
        return step
    calls = {call: None for group in groups for call in group.computes}
    values = (out.name for call in calls for out in call.outputs if out is not None)
    lines = dict.fromkeys(str(call.where) for call in calls if call.where)
    return replace(step, computes=tuple(values), lines=tuple(lines))


class _Emitter:
    def __init__(
        self, schedule: Schedule, options: InductorOptions, backends: dict[str, KernelBackend]
    ) -> None:
        self.schedule = schedule
        self.lowered = schedule.lowered
        self.sizes = schedule.lowered.sizes
        self.options = options
        self.backends = backends
        self.tensors: dict[str, rt.Tensor] = {}
        self.steps: list[rt.Step] = []
        self.views: dict[tuple[str, Spec], str] = {}
        self.view_count = 0
        self.sources: list[rt.Source] = []
        self.kernels: list[rt.Kernel] = []
        self.scratch: dict[str, int] = {}

    def emit(self) -> rt.Program:
        schedule, lowered, memory = self.schedule, self.lowered, self.schedule.memory
        for name in lowered.inputs:
            if name in lowered.buffers:
                self.declare(name)
        kernels = build_kernels(self.schedule, self.options)
        combined = self.combined(kernels) if self.options.combine_kernels else {}
        launches = self.launches({s: k for s, k in kernels.items() if s not in combined})
        launches |= {run[-1]: launch for run, launch in combined.values()}
        waiting: list[str] = []
        for step, group in enumerate(schedule.groups):
            for allocation in memory.allocate[step]:
                self.allocate(allocation)
            if step in launches:
                parts = combined[step][0] if step in combined else [step]
                self.launch(with_computed(launches[step], [schedule.groups[n] for n in parts]))
            elif group.is_extern:
                self.extern(group.nodes[0], memory.overwritten(step))  # type: ignore[arg-type]
                self.steps[-1:] = [with_computed(self.steps[-1], [group])]
            waiting += memory.free[step]
            if step in combined and step != combined[step][0][-1]:
                continue  # other parts of the launch come
            for name in waiting:
                self.free(name)
            self.drop_views(waiting, step)
            waiting = []
        for name in memory.unused:
            self.allocate(Allocation(name))
        outputs = tuple(self.output(out) for out in lowered.outputs)
        return rt.Program(
            inputs=tuple(lowered.inputs),
            tensors=tuple(self.tensors.values()),
            symbols=lowered.symbols,
            sources=tuple(self.sources),
            kernels=tuple(self.kernels),
            steps=tuple(self.steps),
            outputs=outputs,
            mutated=tuple(lowered.write_counts),
            name=lowered.graph.name,
            write_counts=tuple(lowered.write_counts.values()),
            private_outputs=lowered.graph.private_outputs,
        )

    def launches(self, scheduled: dict[int, ScheduledKernel]) -> dict[int, rt.Launch]:
        """Generate code, one call of a generator for each kind of device."""
        result: dict[int, rt.Launch] = {}
        kinds = dict.fromkeys(launch.kernel.device for launch in scheduled.values())
        for kind in kinds:
            steps = [step for step, launch in scheduled.items() if launch.kernel.device == kind]
            backend = self.backends.get(kind) or backend_for(kind)
            emitted = backend.emit([scheduled[step] for step in steps], self.options)
            self.add(emitted)
            result.update(zip(steps, emitted.launches, strict=True))
        attention = build_attention_kernels(self.schedule)
        if attention:
            emitted = emit_attention(list(attention.values()))
            self.add(emitted)
            result.update(zip(attention, emitted.launches, strict=True))
        return result

    def add(self, emitted: Emitted) -> None:
        """Sources and kernels of a generator."""
        base = len(self.sources)
        self.sources += emitted.sources
        self.kernels += [replace(kernel, source=kernel.source + base) for kernel in emitted.kernels]
        self.scratch |= {
            kernel.name: kernel.meta["scratch"]
            for kernel in emitted.kernels
            if "scratch" in kernel.meta
        }

    def combined(
        self, scheduled: dict[int, ScheduledKernel]
    ) -> dict[int, tuple[list[int], rt.Launch]]:
        """Steps that share a launch -> all of these, and the launch."""
        result: dict[int, tuple[list[int], rt.Launch]] = {}
        names: dict[tuple[object, ...], str] = {}
        schedule = self.schedule
        runs = combinable(self.lowered, schedule.groups, schedule.memory, scheduled)
        for run in runs:
            parts = [scheduled[step] for step in run]
            backend = self.backends.get("cuda") or backend_for("cuda")
            key = tuple((part.kernel, part.tiling) for part in parts)
            name = names.get(key, f"cuda_combined_{len(names)}")
            emitted = backend.combine(parts, name)
            if emitted is None:
                continue
            if key not in names:
                names[key] = name
                kernels = (replace(each, source=len(self.sources)) for each in emitted.kernels)
                self.kernels += kernels
                self.sources += emitted.sources
            result |= dict.fromkeys(run, (run, emitted.launches[0]))
        return result

    def launch(self, launch: rt.Launch) -> None:
        """A launch, with scratch memory for all programs if its kernel asks for any."""
        scratch = self.scratch.get(launch.kernel, 0)
        if not scratch:
            self.steps.append(launch)
            return
        (programs,) = launch.grid
        assert isinstance(programs, int) and not launch.ints, launch
        name = f"scratch{len(self.steps)}"
        device = self.tensors[launch.buffers[0]].device
        self.tensors[name] = rt.Tensor(name, (programs * scratch,), (1,), "uint8", device)
        self.steps += [
            rt.Allocate(name),
            replace(launch, buffers=(*launch.buffers, name)),
            rt.Free(name),
        ]

    # Tensors

    def declare(self, name: str) -> str:
        """Declare a buffer as a tensor of the program."""
        if name not in self.tensors:
            self.tensors[name] = self.describe(name, self.lowered.buffers[name].spec)
        return name

    def describe(self, name: str, spec: Spec) -> rt.Tensor:
        """A Spec as the Program has it."""
        sizes = self.sizes
        return rt.Tensor(
            name,
            sizes.dims_of(spec.shape),
            sizes.dims_of(spec.stride),
            str(spec.dtype).removeprefix("torch."),
            str(spec.device),
            sizes.dim_of(spec.offset),
        )

    def allocate(self, allocation: Allocation) -> None:
        """Give a buffer memory; views of the buffer whose memory it takes over are gone."""
        if allocation.reuse is not None:
            self.free_views(allocation.reuse)
        name = self.declare(allocation.buffer)
        self.steps.append(rt.Allocate(name, allocation.reuse, allocation.in_place))

    def free(self, name: str) -> None:
        self.free_views(name)
        self.steps.append(rt.Free(name))

    def free_views(self, name: str) -> None:
        """Drop the views of a buffer that is about to die."""
        for key in [key for key in self.views if key[0] == name]:
            self.steps.append(rt.Free(self.views.pop(key)))

    def drop_views(self, freed: list[str], step: int) -> None:
        """Drop views of inputs whose last use this was."""
        for key in [key for key in self.views if self.schedule.last_use.get(key[0], step) <= step]:
            if key[0] not in self.schedule.kept:
                self.steps.append(rt.Free(self.views.pop(key)))

    def tensor(self, ref: TensorRef) -> str:
        """The name of a buffer seen through a Spec: its own, or that of a view."""
        own = self.lowered.buffers[ref.buffer].spec
        if ref.spec is own:
            return ref.buffer
        cached = self.views.get((ref.buffer, ref.spec))
        if cached is None:
            cached = self.views[ref.buffer, ref.spec] = f"view{self.view_count}"
            self.view_count += 1
            self.tensors[cached] = self.describe(cached, ref.spec)
            self.steps.append(rt.View(cached, ref.buffer))
        return cached

    # Extern calls

    def extern(self, call: ExternCall, overwritten: dict[str, str]) -> None:
        """An extern call, after the views that it takes."""
        if call.op in FIXED_KERNELS:
            self.fixed_kernel(call, overwritten)
            return
        launch = launch_named(call.op)
        if launch is not None and self.user_launch(launch, call):
            return
        args = tuple(self.argument(arg) for arg in call.args)
        kwargs = {key: self.argument(arg) for key, arg in call.kwargs.items()}
        for name in call.results:
            if name is not None:
                self.declare(name)
        if call.op == op_name(reserve_random):
            self.reserve(call.results[0], *args)
            return
        self.steps.append(rt.Extern(call.op, args, kwargs, call.results, call.out))

    def fixed_kernel(self, call: ExternCall, overwritten: dict[str, str]) -> None:
        """Launch a kernel whose text is always the same; one source may hold several."""
        name = FIXED_KERNELS[call.op]
        if all(kernel.name != name for kernel in self.kernels):
            source, kernels = fixed_source(call.op, self.options.threads)
            self.add(Emitted((source,), kernels, ()))
        *refs, ints = call.args
        reads = [overwritten.get(ref.buffer) or self.tensor(ref) for ref in refs]
        buffers = (*reads, *(buffer for _, buffer in call.out))
        sizes = (item.size if isinstance(item, SizeRef) else item for item in ints)
        self.steps.append(rt.Launch(name, buffers, self.sizes.dims_of(sizes)))

    def user_launch(self, operator: LaunchOperator, call: ExternCall) -> bool:
        """Launch a kernel of the program, if Programs can."""
        launch = lower_user_launch(operator.launch, call)
        if launch is None:
            return False
        name = self.user_kernel(launch)
        buffers = tuple(self.tensor(ref) for ref in launch.buffers)
        ints = tuple(
            self.sizes.names[str(item.symbol)]
            if isinstance(item, FloatExpr)
            else self.sizes.dim_of(item)
            for item in launch.sizes
        )
        self.steps.append(rt.Launch(name, buffers, ints, self.sizes.dims_of(launch.grid)))
        return True

    def user_kernel(self, launch: UserLaunch) -> str:
        """The name of a launch's kernel, which launches of equal text and properties share."""
        for kernel in self.kernels:
            if self.sources[kernel.source] == launch.source and kernel.meta == launch.kernel.meta:
                return kernel.name
        self.kernels.append(replace(launch.kernel, source=len(self.sources)))
        self.sources.append(launch.source)
        return self.kernels[-1].name

    def reserve(self, state: str | None, increment: rt.Dim | rt.SizeExpr, device: Any) -> None:
        """A draw's share of a generator, its state under the symbols that kernels are passed."""
        assert state is not None
        dim = increment.text if isinstance(increment, rt.SizeExpr) else increment
        symbols = (host_symbol(state, 0), host_symbol(state, 1))
        self.steps.append(rt.Reserve(state, device.name, dim, symbols))

    def argument(self, arg: Any) -> Any:
        """An argument as Programs have it."""
        match arg:
            case TensorRef():
                return rt.Ref(self.tensor(arg))
            case SizeRef(size):
                dim = self.sizes.dim_of(size)
                return dim if isinstance(dim, int) else rt.SizeExpr(dim)
            case list() | tuple():
                return type(arg)(self.argument(item) for item in arg)
            case FloatExpr(symbol=str(name)):
                return rt.Float(self.sizes.names[name])
            case FloatExpr():
                return as_float(arg)  # Programs compute no floats: specialises, with a guard
            case torch.dtype():
                return rt.Dtype(str(arg).removeprefix("torch."))
            case torch.device():
                return rt.Device(str(arg))
            case torch.layout():
                return rt.Layout(str(arg).removeprefix("torch."))
            case torch.memory_format():
                return rt.MemoryFormat(str(arg).removeprefix("torch."))
            case None | bool() | int() | float() | complex() | str():
                return arg
        raise TypeError(f"an argument that Programs cannot hold: {arg!r}")

    def output(self, out: TensorRef | SizeRef | None) -> str | rt.SizeExpr | None:
        """An entry of the program's result."""
        if isinstance(out, TensorRef):
            return self.tensor(out)
        return None if out is None else rt.SizeExpr(str(self.sizes.dim_of(out.size)))
