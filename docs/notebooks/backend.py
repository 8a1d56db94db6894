# %% [markdown]
# # A backend of your own
#
# Each stage can be used without the others. Here autograd makes functional graphs of primitives, a
# function of ours looks at them, and the inductor compiles them.

# %%
import torch

import flambeau
from flambeau_autograd import aot
from flambeau_inductor import compile_graph, explain_graph
from flambeau_runtime import format_program
from flambeau_runtime import load as load_program

torch.manual_seed(0)
seen = []


def backend(gm, example_inputs):
    def compiler(graph, kind):  # kind: "inference", "forward" or "backward"
        seen.append((kind, graph))
        return load_program(compile_graph(graph))

    return aot(gm, example_inputs, compiler)


@flambeau.compile(backend=backend)
def loss(x, weight):
    return torch.nn.functional.silu(x @ weight).square().mean()


x, weight = torch.randn(8, 16), torch.randn(16, 4, requires_grad=True)
loss(x, weight).backward()
print([kind for kind, _ in seen])

# %% [markdown]
# A graph prints as text: one primitive a line, each with its shape.

# %%
kind, graph = seen[0]
print(graph)

# %% [markdown]
# The inductor shows its kernels in loop IR, and why loop nests did not become one kernel.

# %%
print(explain_graph(graph))

# %% [markdown]
# A Program is data: what is allocated, launched, called and freed.

# %%
print(format_program(compile_graph(graph)))

# %% [markdown]
# The gradient equals eager's.

# %%
gradient, weight.grad = weight.grad, None
loss.__wrapped__(x, weight).backward()
torch.testing.assert_close(gradient, weight.grad)
