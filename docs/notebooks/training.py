# %% [markdown]
# # Training
#
# The forward and the backward are compiled. The optimizer step can be compiled, too.

# %%
import torch

import flambeau

torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Linear(32, 64), torch.nn.LayerNorm(64), torch.nn.GELU(), torch.nn.Linear(64, 4)
)
x, target = torch.randn(128, 32), torch.randint(4, (128,))

# %% [markdown]
# `flambeau.compile` takes a module and returns a module with the same parameters.

# %%
compiled = flambeau.compile(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
for _ in range(20):
    loss = torch.nn.functional.cross_entropy(compiled(x), target)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
assert losses[-1] < losses[0]

# %% [markdown]
# The gradients are eager's.

# %%
model.zero_grad()
torch.nn.functional.cross_entropy(compiled(x), target).backward()
gradients = [parameter.grad.clone() for parameter in model.parameters()]
model.zero_grad()
torch.nn.functional.cross_entropy(model(x), target).backward()
for gradient, parameter in zip(gradients, model.parameters(), strict=True):
    torch.testing.assert_close(gradient, parameter.grad)

# %% [markdown]
# What the forward saves and what the backward recomputes is listed for each graph.

# %%
for graph in flambeau.explain(compiled).graphs:
    for partition in graph.partitions:
        print(partition)
