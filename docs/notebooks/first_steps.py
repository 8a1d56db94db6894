# %% [markdown]
# # First steps
#
# Compile a function, read what was done, give it other sizes, and mend a graph break.

# %%
import torch

import flambeau

torch.manual_seed(0)


@flambeau.compile
def normalize(x, weight):
    scaled = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
    return torch.tanh(scaled * weight)


x, weight = torch.randn(64, 256), torch.randn(256)
compiled = normalize(x, weight)  # the first call compiles
eager = normalize.__wrapped__(x, weight)
torch.testing.assert_close(compiled, eager)

# %% [markdown]
# `flambeau.explain` says what happened: graphs, guards, kernels, and the seconds of each stage.

# %%
print(flambeau.explain(normalize))

# %% [markdown]
# ## Other sizes
#
# A call with another size recompiles once. The size is symbolic from then on.

# %%
for rows in (3, 5, 7, 100):
    normalize(torch.randn(rows, 256), weight)
explanation = flambeau.explain(normalize)
print(len(explanation.graphs), "graphs for five numbers of rows")
for graph in explanation.graphs:
    print(*(guard.text for guard in graph.guards if "L['x']" in guard.text), sep="; ")

# %% [markdown]
# ## A graph break
#
# An operation that cannot be captured ends the graph. It runs eagerly, and capture continues
# behind it.


# %%
def summarize(x):
    y = torch.sin(x) * 2
    rows = y.mean(-1).tolist()
    return torch.cos(y) + len(rows)


explanation = flambeau.explain(summarize)(x)
print(len(explanation.graphs), "graphs")
for graph_break in explanation.breaks:
    print(graph_break.id, "|", graph_break.where, "|", graph_break.hint)

# %% [markdown]
# The list is needed for its length only. The program can ask the tensor instead.


# %%
def summarize_whole(x):
    y = torch.sin(x) * 2
    return torch.cos(y) + y.shape[0]


whole = flambeau.compile(summarize_whole, fullgraph=True)  # a break would be an error
torch.testing.assert_close(whole(x), summarize(x))
print(len(flambeau.explain(whole).graphs), "graph")
