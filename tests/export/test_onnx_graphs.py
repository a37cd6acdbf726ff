"""Graphs of ONNX that are put together and written in other number formats, on graphs of a few nodes."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from reluformers.onnx.precision import convert_precision

WEIGHT = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)


def build(nodes: list, inputs: dict, outputs: dict, **weights: np.ndarray) -> onnx.ModelProto:
    values = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in side.items()]
        for side in (inputs, outputs)
    ]
    tensors = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "graph", *values, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


PRODUCT = helper.make_node("MatMul", ["x", "weight"], ["y"], name="product")


def build_product(*nodes) -> onnx.ModelProto:
    return build(nodes, {"x": ["rows", 64]}, {"y": ["rows", 64]}, weight=WEIGHT)


@pytest.mark.parametrize(("precision", "share"), [("fp32", 1.0), ("fp16", 0.55), ("int8", 0.4), ("q4", 0.35)])
def test_formats_are_smaller_and_near(precision, share):
    # a tied output layer transposes its weight
    transpose = helper.make_node("Transpose", ["weight"], ["transposed"], perm=[1, 0])
    model = build_product(transpose, helper.make_node("MatMul", ["x", "transposed"], ["y"]))
    converted = convert_precision(model, precision)
    assert converted.ByteSize() <= share * model.ByteSize()
    x = np.random.default_rng(2).normal(size=(7, 64)).astype(np.float32)
    onnxruntime.set_default_logger_severity(3)
    (found,) = onnxruntime.InferenceSession(converted.SerializeToString()).run(None, {"x": x})
    wanted = x @ WEIGHT.T
    tolerance = {"fp32": 1e-6, "fp16": 2e-3, "int8": 2e-2, "q4": 0.2}[precision]
    assert np.linalg.norm(found - wanted) < tolerance * np.linalg.norm(wanted)


def test_int8_rounds_each_row_by_itself():
    """One row is a thousand times as large as the others, which lose all of their bits to a scale of the call."""
    model = build_product(PRODUCT)
    session = onnxruntime.InferenceSession(convert_precision(model, "int8").SerializeToString())
    x = np.random.default_rng(3).normal(size=(6, 64)).astype(np.float32)
    x[2::3] *= 1000
    (together,) = session.run(None, {"x": x})
    alone = np.concatenate([session.run(None, {"x": row[None]})[0] for row in x])
    np.testing.assert_allclose(together, alone, rtol=1e-6, atol=1e-6)
    exact = x @ WEIGHT
    assert (np.linalg.norm(together - exact, axis=1) < 0.04 * np.linalg.norm(exact, axis=1)).all()


def test_no_two_products_of_int8_pass_16_bits():
    """CPUs without VNNI add the products of two bytes without a sign and two weights into 16 bits."""
    model = build_product(PRODUCT)
    weights = {
        tensor.name: numpy_helper.to_array(tensor) for tensor in convert_precision(model, "int8").graph.initializer
    }
    sizes = np.abs(weights["weight_quantized"].astype(int))
    assert sizes.max() >= 63
    assert 255 * (sizes[::2] + sizes[1::2]).max() <= 32767
    np.testing.assert_allclose(
        weights["y.sums"], (weights["weight_quantized"] * weights["weight_scale"]).sum(0), rtol=1e-5
    )
