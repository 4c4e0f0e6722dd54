"""Models in an engine, against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnx

from codl.engine.engine import Engine
from codl.ir.network import Network
from codl.ir.records.soc import Soc
from codl.plan.build_plan import default_plan, preferring
from support.devices import here
from support.libraries import INSTALLED, preferred
from support.references import by_onnx_runtime, converted


def same_as_onnx_runtime(
    proto: onnx.ModelProto, soc: Soc, atol: float = 1e-4, *, as_it_is: bool = False
) -> Network:
    """Run a model on the GPU alone, in each of the CPU's libraries, and by ONNX Runtime.

    ONNX Runtime may not rewrite it `as_it_is`.
    """
    network, random = converted(proto), np.random.default_rng(0)
    feeds = {
        info.name: random.standard_normal(
            [d.dim_value for d in info.type.tensor_type.shape.dim]
        ).astype(np.float32)
        for info in proto.graph.input
    }
    expected = by_onnx_runtime(proto, feeds, as_it_is=as_it_is)
    plans = {"gpu": default_plan(network, soc, "gpu", chained=False)}
    for library in INSTALLED:
        with preferred(library):
            plans[library] = preferring(network, soc, "cpu")
    for label, plan in plans.items():
        with Engine(network, plan, here(soc)) as engine:
            got = engine(feeds)
        for name, value in expected.items():
            most = max(atol, 1e-5 * np.abs(value).max(initial=0))
            np.testing.assert_allclose(got[name], value, atol=most, rtol=1e-4, err_msg=label)
    return network
