"""Decoders become networks of one step, whose caches are states; what has none is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.decoders import SMALL, OrtDecoder, split_plan
from support.simulated import SOC
from support.some import some

from codl.errors import CodlError, UnknownNameError, UnsupportedError
from codl.frontend.decoders import DECODERS, PAST_LENGTH, read_decoder, step_of
from codl.frontend.decoders.build import TOKENS, DecoderSource, built, describe, with_weights
from codl.frontend.graph.weights import Model
from codl.frontend.models.builder import ModelBuilder
from codl.kernels.tuning import Tuning
from codl.lower import lower
from codl.runtime.numpy_interpreter import Interpreter

CAPACITY = 24


@pytest.fixture(scope="module")
def source() -> DecoderSource:
    return built("small", SMALL)


def with_mask(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The counts computed of a mask, as the model builder of onnxruntime-genai has them."""
    graph = proto.graph
    left = [info for info in graph.input if "len" not in info.name]
    mask = helper.make_tensor_value_info("attention_mask", TensorProto.INT64, ("b", "total"))
    del graph.input[:]
    graph.input.extend([*left, mask])
    nodes = [
        helper.make_node("ReduceSum", ["attention_mask", "one"], ["sum"], keepdims=0),
        helper.make_node("Sub", ["sum", "one"], ["last"]),
        helper.make_node("Cast", ["last"], ["seqlens_k"], to=TensorProto.INT32),
        helper.make_node("Shape", ["attention_mask"], ["sizes"]),
        helper.make_node("Gather", ["sizes", "axis"], ["total"]),
        helper.make_node("Cast", ["total"], ["total_sequence_length"], to=TensorProto.INT32),
    ]
    constants = {"one": np.array([1]), "axis": np.array(1)}
    graph.initializer.extend(numpy_helper.from_array(v, k) for k, v in constants.items())
    for node in reversed(nodes):
        graph.node.insert(0, node)
    return proto


@pytest.mark.parametrize("masked", [False, True])
def test_a_file_is_the_network_that_it_was_written_from(
    masked: bool, source: DecoderSource, tmp_path: Path
) -> None:
    proto = with_weights(source, CAPACITY)
    onnx.save(with_mask(proto) if masked else proto, tmp_path / "small.onnx")
    for tokens in (1, 4):
        network = step_of(read_decoder(str(tmp_path / "small.onnx")), tokens, CAPACITY).network
        expected = step_of(source, tokens, CAPACITY).network
        assert network.digest == expected.digest
        assert network.inputs == expected.inputs
        assert network.states == expected.states
    assert set(network.inputs) == {TOKENS, PAST_LENGTH, "last_row"}
    assert len(network.states) == 2 * SMALL.layers


def test_angles_are_looked_up_once_for_all_layers(source: DecoderSource) -> None:
    kinds = [layer.op.kind for layer in step_of(source, 1, CAPACITY).network.layers]
    assert kinds.count("gather") == 3  # words, cosines and sines
    assert kinds.count("cached_attention") == SMALL.layers
    assert "fc" not in kinds


@pytest.mark.parametrize("ratio", [0.0, 0.5, 1.0])
def test_states_last_from_run_to_run(ratio: float, source: DecoderSource) -> None:
    """Each processor keeps what its own groups have written, whatever memory is used again."""
    step = step_of(source, 1, CAPACITY)
    plan = split_plan(step.network, SOC, ratio)
    interpreter = Interpreter(lower(step.network, plan, SOC, Tuning()), poisoned=True)
    reference = OrtDecoder(source, CAPACITY)
    for place, word in enumerate((3, 7, 200)):
        interpreter.inputs[TOKENS][:] = word
        interpreter.inputs[PAST_LENGTH][:] = place
        interpreter.run()
        wanted = reference.decode(word)
        np.testing.assert_allclose(
            interpreter.outputs[step.logits].reshape(-1), wanted, atol=2e-5 * np.abs(wanted).max()
        )


def test_published_sizes() -> None:
    """What the models' cards say that their weights are."""
    sizes = {"smollm2_135m": 134_515_008, "qwen3_0_6b": 596_049_920, "llama3_2_1b": 1_235_814_400}
    for name, own in some(DECODERS.items()):
        builder = ModelBuilder(name, weights=False)
        describe(builder, own, tokens=1, capacity=1)
        tied = own.words * own.features  # there once in the published weights, and here twice
        assert builder.parameters - tied == sizes[name]


def test_more_tokens_than_the_cache_has_room_for(source: DecoderSource) -> None:
    with pytest.raises(CodlError, match="A step of 25 tokens does not go into a cache of 24"):
        step_of(source, 25, 24)


def test_a_name_that_is_no_decoder() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'smollm2_135m'"):
        read_decoder("smollm2_135")


def refused(proto: onnx.ModelProto, why: str) -> None:
    with pytest.raises(UnsupportedError, match=why):
        step_of(DecoderSource("odd", lambda tokens, capacity: Model.of(proto)), 1, 8)


def test_models_whose_cache_is_not_recognised(source: DecoderSource) -> None:
    relu = helper.make_node("Relu", ["past_key_values.0.key"], ["y"])
    info = [helper.make_tensor_value_info("past_key_values.0.key", TensorProto.FLOAT, [1, 2, 3, 4])]
    out = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 2, 3, 4])]
    model = helper.make_model(helper.make_graph([relu], "relu", info, out))
    refused(model, r"past_key_values.0.key, ... are read by others\. codl keeps caches of Group")
    proto = with_weights(source, CAPACITY)
    (node, *_) = (node for node in proto.graph.node if node.op_type == "GroupQueryAttention")
    node.input[3] = node.input[0]
    refused(proto, f"its past '{node.input[0]}' must be an input of the model with 4 axes")
    proto = with_weights(source, CAPACITY)
    (node, *_) = (node for node in proto.graph.node if node.op_type == "GroupQueryAttention")
    node.attribute.append(helper.make_attribute("local_window_size", 16))
    refused(proto, "with a cache it must have .*local_window_size -1.* got .*16")
    proto = with_weights(source, CAPACITY)
    proto.graph.output.append(helper.make_tensor_value_info("matmul1", TensorProto.FLOAT, None))
    refused(proto, "one output; got the inputs input_ids and the outputs logits, matmul1")
