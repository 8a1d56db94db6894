"""What users do around compiled calls, at random, beside eager.

A trial is a list of actions on a model: calls, training steps, outputs held or dropped, weights
replaced, other streams, threads and pools, captures by the caller. Both sides of a trial do
each action from equal random states; results, parameters, buffers, gradients, held outputs and the
generator are compared after each. On a GPU most calls are replays of recorded CUDA graphs, for
which all this matters; without one, the actions that need none run on the CPU.

| question | file |
|---|---|
| which models are called? | `models.py` |
| what does a side of a trial hold, and which inputs does it make? | `side.py` |
| which calls and what becomes of outputs? | `calling.py` |
| which training steps? | `training.py` |
| what happens around the calls? | `surroundings.py` |
| how is a trial drawn, run, compared and shortened? | `trial.py` |
| how are trials run in processes that may crash? | `check.py`, `process.py` |
"""
