"""Backends that hand our functional graphs to another compiler: ONNX Runtime, OpenVINO, TVM,
TensorRT, XLA.

    autograd -> functional graph -> ExportedProgram -> onnxrt | openvino | tvm | tensorrt | openxla

Autograd has removed mutations and aliases before, so an engine sees pure functions of tensors, in
inference and in training. A graph that its engine cannot take runs eagerly, with the engine's
reason in the report.

| module | what it has |
|---|---|
| `names` | which engines there are, the packages they need, and backends that are retired |
| `interop_export` | a functional graph as an ExportedProgram |
| `engine_graph` | the callable around an engine's program: sizes, layouts, writes to inputs |
| `trial` | the check of each program on random numbers |
| `index_bounds` | the check of indices, for engines that do not make it |
| `layouts` | a contiguous result in the strides that the graph promises |
| `refusals` | why a graph runs eagerly |
| `onnxrt`, `openvino`, `tvm`, `tensorrt`, `openxla` | one engine each: `build(program, examples)` |
"""
