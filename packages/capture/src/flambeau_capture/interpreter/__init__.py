"""The bytecode interpreter: runs a CPython frame on real objects, fake tensors and symbolic sizes,
and records what it does.

A folder uses only what stands above it; import-linter checks that.

code/             decode.py: code objects -> instructions; data_flow.py: live variables, and how the
                  code after a load uses the loaded value
protocols.py      what the lower floors ask of the upper ones; strategies of capture
values/           objects.py: sources, tracked copies, pending writes, and `wrap`, through which
                  each value from outside enters a frame; program_functions.py: guards on functions
                  and on identity; classes.py: attributes and special methods of classes;
                  lazy_values.py: values and containers that are not read yet, or in part;
                  numbers.py, unbacked.py: symbolic numbers; deferred_strings.py: text made after
                  the graph; subclasses.py: tensor subclasses; keys.py: hashes and equality;
                  lifetimes.py: weak references, and dead locals that the program may watch
foreign_types.py  the registry of libraries whose objects a room captures
substitute_registry.py    functions of the program's libraries that have a replacement
tracebacks.py     tracebacks of interpreted frames, with the program's names and lines
torch_calls/      tape.py: the record of torch calls; inputs.py: tensors and numbers that the graph
                  reads; torch_functions.py: functions that become one call; tensors.py: attributes
                  of tensors; hooks.py; script_functions.py: functions of torch.jit;
                  contexts.py: default devices, inference mode;
                  data_dependent_predicates.py: torch.equal and the like; host_draws.py: draws of
                  `random` and NumPy
machine.py        the state of one capture, and of one frame: locals, stack, position
frame.py          the run loop; what errors of native code mean; unwinding
generator.py      suspended frames behind Python's generator protocol
semantics/        attributes, writes of attributes, items and iteration, operators, formatting;
                  native_functions.py: the C functions that are pure
branches/         speculation.py: branches on data that follow the captured call, or of which one
                  way raises, checked in the graph; observation.py: the data of that call
exit/             rebuild.py, rebuild_objects.py: recipes of results;
                  side_effects.py; suspend.py, suspended_frame.py: frames at a graph break
opcodes/          one handler per opcode, named as the opcode, one file per concern
substitutes/      replacements of functions that call back, read frames, or ask whether they are
                  compiled
constructing.py   calls of classes: how instances are made
calling.py        calls: interpreted, recorded, native, or a graph break
capture.py        `capture_frame`: from a call to a record.Capture or a record.Break
"""
