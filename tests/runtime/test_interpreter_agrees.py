"""A device and the NumPy interpreter run one executable: they give the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.devices import here
from support.executables import small_network, small_plan
from support.numpy_interpreter import Interpreter
from support.random_networks import random_networks, random_plans

from codl.engine.engine import Engine
from codl.ir.executable import Executable
from codl.ir.network import Network
from codl.ir.plan import Plan
from codl.ir.records.soc import Soc
from codl.measure.inputs import random_inputs


def check_alike(network: Network, plan: Plan, soc: Soc) -> None:
    inputs = random_inputs(network)
    with Engine(network, plan, here(soc)) as engine:
        outputs = engine(inputs)
        interpreted = run(engine.executable, inputs)
    tolerance = 3e-2 if soc.gpu.element == "float16" else 1e-4
    for name, expected in interpreted.items():
        most = max(np.abs(expected).max(), 1)
        assert np.abs(outputs[name] - expected).max() <= tolerance * most, name


def run(executable: Executable, inputs: dict[str, np.ndarray[Any, Any]]) -> dict[str, Any]:
    interpreter = Interpreter(executable)
    for name, array in interpreter.inputs.items():
        np.copyto(array, inputs[name].reshape(array.shape))
    interpreter.run()
    return interpreter.outputs


def test_the_small_executable(soc: Soc) -> None:
    network = small_network()
    check_alike(network, small_plan(network, soc), soc)


@pytest.mark.filterwarnings("ignore::codl.errors.CodlWarning")
def test_random_executables(first_soc: Soc) -> None:
    @given(data=st.data(), network=random_networks(5))
    @settings(max_examples=12, derandomize=True)
    def look(data: st.DataObject, network: Network) -> None:
        check_alike(network, data.draw(random_plans(network, first_soc)), first_soc)

    look()
