"""codl behind ONNX's own backend interface, with everything on one side.

>>> import codl.backend
>>> rep = codl.backend.prepare(model)
>>> (y,) = rep.run([x])

What is run is the usual pipeline: import, simplification, conversion, plan and engine. The plan
puts every op on the GPU side, so that ONNX's conformance suite (`codl conformance`) tests the
OpenCL kernels alone.

codl computes in float32. Other numeric types are converted where they come in and go out (see
`codl.backend.backend`); strings, complex numbers, sequences, optional values and the narrow types
of quantization are refused.
"""

from codl.backend.backend import CodlBackend, CodlRep

is_compatible = CodlBackend.is_compatible
prepare = CodlBackend.prepare
run_model = CodlBackend.run_model
run_node = CodlBackend.run_node
supports_device = CodlBackend.supports_device

__all__ = [
    "CodlBackend",
    "CodlRep",
    "is_compatible",
    "prepare",
    "run_model",
    "run_node",
    "supports_device",
]
