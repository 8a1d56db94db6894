"""The bytecode interpreter: runs a CPython frame on real objects, fake tensors and symbolic sizes,
and records what it does.

capture.py       `capture_frame`: from a call to a record.Capture or a record.Break
code/decode.py        code objects -> decoded instructions, once per code object
frame.py         one frame: locals, stack, position; the run loop and exception-table unwinding
opcodes/         one handler per opcode, named as the opcode, one file per concern
generator.py     suspended frames behind Python's generator protocol
torch_calls/subgraph_capture.py      a function of the program on a tape of its own: a subgraph

values/strategy.py        the ways in which a frame may be interpreted
machine.py       the state of one capture: guards, cells, globals, deferred calls
values/objects.py       what existed before the call: sources, tracked copies, pending writes;
                        `wrap`, the one door into the frame
values/program_functions.py, values/program_functions.py    functions are guarded by what is read of them; identity, where the program observes it
values/classes.py    types whose objects are guarded by value or by identity
values/lazy_values.py, code/stack_use_analysis.py    containers that a frame reads or extends in part, as the code after a load says
values/lazy_values.py      containers passed to functions of the program before anything is read of
                           them
values/classes.py       raw class attributes, special methods written in Python
substitutes/class_making.py    class statements
semantics/attributes.py, semantics/items.py, semantics/items.py, semantics/operators.py    what Python's operations mean on such values
values/classes.py                                           what special methods answer,
                                                                       as CPython takes it
semantics/attribute_writes.py, semantics/attributes.py    setting attributes, and where what was set is seen until exit

semantics/formatting.py, values/keys.py    text, hashes and equality of the program's objects, where native code asks for them
values/deferred_strings.py, semantics/formatting.py    text of tensors, which is made when the graph has run; `%` and `str.format` with such
opcodes/exceptions.py    raising and handling, `except*`

calling.py       calls: interpreted, recorded, native, or a break
substitutes/     what stands in for functions that call back, look at frames, or ask whether they
                 are compiled
torch_calls/torch_functions.py       errors that torch raises on fake tensors say what they say eagerly
semantics/native_functions.py        which C functions are pure
substitutes/modules.py, torch_calls/hooks.py    nn.Module calls and their hooks; hooks on gradients
torch_calls/torch_functions.py, torch_calls/tape.py, torch_calls/inputs.py    torch-level calls: which functions make them, their record, their shapes
torch_calls/inputs.py, torch_calls/tensors.py    tensors and numbers that the graph reads; attributes of tensors
values/numbers.py    tensors where an operator takes a number
torch_switches.py, torch_calls/contexts.py, torch_calls/contexts.py    grad mode, autocast and the like; inference mode; default devices
values/subclasses.py    tensor subclasses and `__torch_function__`
foreign_types.py    the libraries whose objects a room captures (numpy/)
torch_calls/host_draws.py    random numbers of `random` and NumPy

values/numbers.py, values/numbers.py, values/unbacked.py    numbers that are inputs of the graph; made concrete; computed by the graph
values/unbacked.py    indices of tensors that only the graph knows
branches/raising_branches.py, torch_calls/data_dependent_predicates.py    branches on data: of which one way only raises, of which the answer is known
torch_calls/data_dependent_predicates.py     torch.equal and the like
branches/speculation.py, branches/observation.py, branches/observation.py    branches on data that are taken as this call takes them, and checked in the graph

exit/rebuild.py       recipes for what leaves the frame
exit/side_effects.py, exit/side_effects.py    what the frame did to what existed before, and to context variables
exit/rebuild_objects.py, exit/rebuild_generators.py, exit/rebuild_objects.py    those of values that only a graph break meets
exit/rebuild_objects.py                       those of generic types
tracebacks.py                          tracebacks of interpreted frames, with the program's names
                                       and lines
exit/suspend.py, exit/suspended_frame.py, code/liveness.py    the frames at a graph break, and which of their locals are still needed
"""
