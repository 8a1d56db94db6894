# %% [markdown]
# # Graphs without a compiler
#
# `flambeau_capture` alone exports a call as a graph. It needs torch and `flambeau_prims`, but no
# C++ compiler.

# %%
import torch

from flambeau_capture import Dim, export, load

torch.manual_seed(0)


class Classifier(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(100, 16)
        self.head = torch.nn.Linear(16, 3)

    def forward(self, ids):
        return torch.log_softmax(self.head(self.table(ids).mean(1)), -1)


model = Classifier()
batch, length = Dim("batch"), Dim("length", max=512)
exported = export(
    model,
    (torch.randint(100, (4, 7)),),
    dynamic_shapes={"ids": {0: batch, 1: length}},
)
exported.print_readable()

# %% [markdown]
# The graph is a `torch.fx.GraphModule`. A pass of torch.fx works on it.

# %%
for node in exported.graph_module.graph.nodes:
    if node.op == "call_function":
        print(f"{node.name:12} {node.target.__name__:12} {node.meta['spec']}")

# %% [markdown]
# The export holds for all sizes that the Dims admit. Wrong inputs are refused by name.

# %%
other = torch.randint(100, (9, 30))
torch.testing.assert_close(exported(other), model(other))
try:
    exported(torch.randint(100, (9, 600)))
except Exception as error:
    print(type(error).__name__, error)

# %% [markdown]
# A saved export needs no source of the model, and loading it runs no code from the file.

# %%
exported.save("classifier.flambeau")
torch.testing.assert_close(load("classifier.flambeau")(other), model(other))
