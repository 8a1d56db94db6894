"""The bytecode interpreter: runs a CPython frame on real objects, fake tensors and symbolic sizes, and records what it does.

capture.py       `capture_frame`: from a call to a record.Capture or a record.Break
decode.py        code objects -> decoded instructions, once per code object
frame.py         one frame: locals, stack, position; the run loop and exception-table unwinding
opcodes/         one handler per opcode, named as the opcode, one file per concern
generator.py     suspended frames behind Python's generator protocol
enclosed.py      a function of the program on a tape of its own: a subgraph

manner.py        the ways in which a frame may be interpreted
machine.py       the state of one capture: guards, cells, globals, deferred calls
objects.py       what existed before the call: origins, shadows, overlays; `wrap`, the one door into the frame
program_functions.py, identity.py    functions are guarded by what is read of them; identity, where the program observes it
constant_types.py    types whose objects are guarded by value or by identity
partial_reads.py, uses.py    containers that a frame reads or extends in part, as the code after a load says
unread_arguments.py      containers passed to functions of the program before anything is read of them
classes.py       raw class attributes, special methods written in Python
class_building.py    class statements
attributes.py, items.py, iteration.py, operations.py    what Python's operations mean on such values
protocols.py                                           what special methods answer, as CPython takes it
attribute_writes.py, attribute_overlays.py    setting attributes, and where what was set is seen until exit

formatting.py, keys.py    text, hashes and equality of the program's objects, where native code asks for them
pending_text.py, text_templates.py    text of tensors, which is made when the graph has run; `%` and `str.format` with such
exception_groups.py       what `except*` does

calling.py       calls: interpreted, recorded, native, or a break
substitutes/     what stands in for functions that call back, look at frames, or ask whether they are compiled
binding_errors.py    CPython's words for arguments that do not fit
error_texts.py       errors that torch raises on fake tensors say what they say eagerly
native.py        which C functions are pure
modules.py, hooks.py    nn.Module calls and their hooks; hooks on gradients
torch_functions.py, tape.py, spec_tracer.py    torch-level calls: which functions make them, their record, their shapes
inputs.py, tensors.py    tensors and numbers that the graph reads; attributes of tensors
scalar_arguments.py    tensors where an operator takes a number
switches.py, inference.py, default_device.py    grad mode, autocast and the like; inference mode; default devices
subclasses.py    tensor subclasses and `__torch_function__`
numpy_objects.py, arrays/    NumPy
host_draws.py    random numbers of `random` and NumPy

scalars.py, symbolic.py, unbacked.py    numbers that are inputs of the graph; made concrete; computed by the graph
unbacked_indices.py    indices of tensors that only the graph knows
raising_branches.py, known_ranges.py    branches on data: of which one way only raises, of which the answer is known
questions.py     torch.equal and the like
speculation.py, observation.py, repeatable.py    branches on data that are taken as this call takes them, and checked in the graph

rebuild.py       recipes for what leaves the frame
effects.py, context_writes.py    what the frame did to what existed before, and to context variables
rebuild_exceptions.py, rebuild_generators.py, rebuild_iterators.py    those of values that only a graph break meets
rebuild_types.py                       those of generic types
tracebacks.py                          tracebacks of interpreted frames, with the program's names and lines
suspend.py, suspended_frame.py, liveness.py    the frames at a graph break, and which of their locals are still needed
"""
