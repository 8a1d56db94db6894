"""The bytecode interpreter: runs a CPython frame on real objects, fake tensors and symbolic sizes, and records what it does.

    decode.py       code objects -> decoded instructions, once per code object
    frame.py        one frame: locals, stack, position; the run loop and exception-table unwinding
    opcodes/        one handler per opcode, named as the opcode, one file per concern
    machine.py      the state of one capture: the tape, origins, guards, overlays, and calls of Python functions
    capture.py      `capture_frame`: from a call to a record.Capture or a record.Break
"""
