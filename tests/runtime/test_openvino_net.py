"""Nets of OpenVINO against ONNX Runtime's, and what happens where it is not installed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from codl.errors import DeviceError, MissingPackageError
from codl.ir import Op, parse
from codl.ir.executable import OpenVinoNet
from codl.ir.ops.base import OP_TYPES, Array
from codl.kernels import registry
from codl.kernels.cpu import CPU_OPENVINO
from codl.lower import pieces
from codl.machine.placement import LocalSoc
from codl.measure.op_runner import operands, share_of_ops
from codl.runtime import handles
from codl.runtime.session import host_session


def output(op: Op, variant: str, soc: LocalSoc) -> Array:
    inputs, weights = operands(op)
    found: Any = registry.find(op, variant, "cpu")
    session = host_session(pieces.net_alone([op], found, [weights], soc), soc)
    for array, values in zip(session.inputs.values(), inputs, strict=True):
        np.copyto(array, values)
    session.run()
    return session.outputs[pieces.OUTPUT].copy()


@pytest.mark.parametrize("kind", [kind for kind in OP_TYPES if kind != "onnx"])
def test_it_computes_what_onnx_runtime_does(kind: str, first_soc: LocalSoc) -> None:
    pytest.importorskip("openvino")
    for text in OP_TYPES[kind].examples:
        op = parse(text)
        if registry.find(op, CPU_OPENVINO).refusal(op, first_soc) is None:
            reference = output(op, "cpu_ort", first_soc)
            atol = 1e-5 * np.abs(reference).max()
            np.testing.assert_allclose(
                output(op, CPU_OPENVINO, first_soc), reference, atol=atol, err_msg=text
            )


def test_a_missing_library_is_named_with_the_command(
    first_soc: LocalSoc, monkeypatch: pytest.MonkeyPatch
) -> None:
    op = parse("conv2d in=1x16x8x8 oc=16 kernel=3x3 pad=1")
    variant: Any = registry.find(op, CPU_OPENVINO)
    _, weights = operands(op)
    executable = pieces.net_alone([op], variant, [weights], first_soc)
    assert isinstance(executable.nets[0], OpenVinoNet)
    monkeypatch.setattr(handles, "find_spec", lambda _: None)
    with pytest.raises(MissingPackageError, match="`pip install openvino`"):
        host_session(executable, first_soc)


def test_a_shape_that_openvino_does_not_take_is_an_error_of_codl(first_soc: LocalSoc) -> None:
    """It is one that plans are tried with: another plan is taken."""
    pytest.importorskip("openvino")
    op = parse("eltwise in=1x3x5x7 mode=abs")
    variant: Any = registry.find(op, CPU_OPENVINO)
    executable = pieces.net_alone([op], variant, [{}], first_soc)
    (net,) = executable.nets
    (binding,) = net.outputs
    turned = replace(net, outputs=(replace(binding, sizes=binding.sizes[::-1]),))
    with pytest.raises(DeviceError, match="OpenVINO shapes"):
        host_session(replace(executable, nets=(turned,)), first_soc)


@pytest.mark.parametrize("variant", ["cpu_ort", CPU_OPENVINO])
def test_what_moves_tensors_is_no_part_of_an_op(variant: str, first_soc: LocalSoc) -> None:
    """A convolution in blocks has its ends reordered, which takes longer than its few products."""
    if variant == CPU_OPENVINO:
        pytest.importorskip("openvino")
    op = parse("conv2d in=1x64x56x56 oc=64 kernel=1x1 groups=64")
    found: Any = registry.find(op, variant)
    share = share_of_ops(pieces.net_alone([op], found, [operands(op)[1]], first_soc), first_soc)
    assert 0 < share < 0.9
