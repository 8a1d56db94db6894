"""A tour of the stages, each with its own eyes: run it with `python docs/tour.py` (CI does).

One small function goes through all five packages. At every border the value is plain and printable;
nothing here is private.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from flambeau_prims.graph import Graph


def program(x: torch.Tensor, scale: float) -> torch.Tensor:
    """Softmax of a scaled product."""
    return torch.softmax(torch.tanh(x @ x.t()) * scale, -1)


def heading(text: str) -> None:
    """A title in the output."""
    print(f"\n--- {text} " + "-" * (90 - len(text)))


def main() -> None:
    """Each stage in turn."""
    x = torch.randn(6, 5)

    heading("1. capture: a Python call becomes a graph of torch calls, with guards")
    from flambeau_capture import export

    exported = export(program, (x, 0.5))
    exported.print_readable()
    print("guards:", *exported.guards, sep="\n  ")

    heading("2. autograd: that graph becomes functional graphs of primitives")
    from flambeau_autograd import aot
    from flambeau_prims.evaluate import run_graph

    graphs: list[Graph] = []

    def compiler(graph: Graph, kind: str) -> Any:
        graphs.append(graph)
        return lambda *inputs: run_graph(graph, inputs)

    with torch.no_grad():
        aot(exported.graph_module, exported.flat_inputs(x, 0.5), compiler)
    (graph,) = graphs
    print(graph)

    heading("3. prims: what each operator does to shapes is known without data")
    from flambeau_prims import Spec, Tracer

    with Tracer() as tracer:
        fake = tracer.fake(Spec.of((6, 5)))
        print("a fake result:", program(fake, 0.5).spec)

    heading("4. inductor: primitives become loops, loops become kernels and a Program")
    from flambeau_inductor import compile_graph
    from flambeau_runtime import format_program

    compiled = compile_graph(graph)
    print(format_program(compiled))
    kernel = compiled.sources[0].text
    print(f"\n({len(kernel.splitlines())} lines of C++, of which the last ones are)")
    print("\n".join(kernel.splitlines()[-12:]))

    heading("5. runtime: the Program is built, cached and run")
    from flambeau_runtime import load

    (found,) = load(compiled)(x)
    print("largest difference from eager:", (found - program(x, 0.5)).abs().max().item())

    heading("All of it: flambeau.compile")
    import flambeau

    print(flambeau.explain(program)(x, 0.5))


if __name__ == "__main__":
    main()
