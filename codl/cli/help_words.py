"""Words of the help of `codl bench llm` and `codl quantize`."""

from __future__ import annotations


def of_decoders() -> str:
    """The strategies that decoders are measured by where none is named."""
    from codl.api.decoders import USUAL

    return ",".join(USUAL)


def bits() -> str:
    """Of a packed number."""
    from codl.ir.ops.matmul_quantized import BITS

    return " or ".join(map(str, BITS))
