"""Number formats of ONNX graphs, under the names that transformers.js has for them."""

import copy
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnx_ir
from onnx import ModelProto, numpy_helper
from onnx.helper import make_node
from onnxruntime.quantization import QuantType, quantize_dynamic
from onnxruntime.transformers.float16 import convert_float_to_float16

from .graphs import quiet

BLOCK_SIZE = 32  # Of 4-bit weights, a block of this size has one scale.
# Without VNNI a CPU adds two products of bytes in 16 bits: 2 · 255 · 64 fits there. That is `reduce_range`.
LARGEST_WEIGHT = 64


def convert_precision(model: ModelProto, precision: str) -> ModelProto:
    """Convert an ONNX graph of float32 to another number format; inputs and outputs stay float32.

    Args:
        model: without subgraphs.
        precision: `"fp16"` for weights and computation; `"int8"` for embeddings and, in 7 bits, weights of products,
            with activations that are rounded as they come, by a scale for each row; `"q4"` for weights of products in
            4 bits, those of embeddings in 8; `"fp32"` for the same graph.
    """
    if precision == "fp32":
        return model
    if precision == "fp16":
        converted = onnx_ir.from_proto(convert_float_to_float16(copy.deepcopy(model), keep_io_types=True))
        converted.graph.sort()  # The converter puts its casts last, behind the nodes that read them.
        return onnx_ir.to_proto(converted)
    model = _with_transposed_weights(model)
    if precision == "q4":
        with quiet():  # This import sets up the root logger.
            from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

            quantizer = MatMulNBitsQuantizer(model, block_size=BLOCK_SIZE, is_symmetric=True)
            quantizer.process()
        model = quantizer.model.model
        return _quantize_weights(model, "Gather")
    _spread_rows(model)
    return _quantize_weights(_quantize_weights(model, "MatMul", reduce_range=True), "Gather")


def _quantize_weights(model: ModelProto, operator: str, reduce_range: bool = False) -> ModelProto:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "float.onnx")
        target = Path(folder, "int8.onnx")
        onnx.save(model, source)
        with quiet():
            quantize_dynamic(
                source,
                target,
                op_types_to_quantize=[operator],
                reduce_range=reduce_range,
                weight_type=QuantType.QInt8,
                per_channel=True,
                extra_options={"MatMulConstBOnly": True},
            )
        return onnx.load(target)


def _spread_rows(model: ModelProto) -> None:
    """Multiply by weights only rows from 0 to 1: onnxruntime has one scale for all rows of a call.

    x·W = r·(y·W) + l·Σ_j W_j with l = min x, r = max x − l and y = (x − l)/r, so that no row hangs on the others.
    """
    graph = model.graph
    made = {}
    weights = {tensor.name: tensor for tensor in graph.initializer}
    graph.initializer.append(numpy_helper.from_array(np.array([-1]), "rows.axis"))
    graph.initializer.append(numpy_helper.from_array(np.array(1e-30, dtype=np.float32), "rows.least"))
    nodes = []
    for node in graph.node:
        if node.op_type != "MatMul" or node.input[1] not in weights:
            nodes.append(node)
            continue
        x, weight = node.input
        (output,) = node.output
        names = ("low", "high", "width", "span", "shifted", "spread")
        low, high, width, span, shifted, spread = (f"{x}.rows.{name}" for name in names)
        if x not in made:
            made[x] = [
                make_node("ReduceMin", [x, "rows.axis"], [low]),
                make_node("ReduceMax", [x, "rows.axis"], [high]),
                make_node("Sub", [high, low], [width]),
                make_node("Max", [width, "rows.least"], [span]),
                make_node("Sub", [x, low], [shifted]),
                make_node("Div", [shifted, span], [spread]),
            ]
            nodes += made[x]
        sums, product, scaled, moved = (f"{output}.{name}" for name in ("sums", "product", "scaled", "moved"))
        rounded = _round_columns(numpy_helper.to_array(weights[weight]))
        weights[weight].CopyFrom(numpy_helper.from_array(rounded, weight))
        graph.initializer.append(numpy_helper.from_array(rounded.sum(0, dtype=np.float32), sums))
        nodes += [
            make_node("MatMul", [spread, weight], [product], name=node.name),
            make_node("Mul", [product, span], [scaled]),
            make_node("Mul", [low, sums], [moved]),
            make_node("Add", [scaled, moved], [output]),
        ]
    del graph.node[:]
    graph.node.extend(nodes)


def _round_columns(weight: np.ndarray) -> np.ndarray:
    """Round weights [in, out] to the multiples of a column's step that int8 will hold: the sums must be theirs."""
    steps = np.maximum(np.abs(weight).max(0) / LARGEST_WEIGHT, np.finfo(np.float32).tiny)
    return np.round(weight / steps) * steps


def _with_transposed_weights(model: ModelProto) -> ModelProto:
    """A copy in which no weight is transposed at run time, as that of a tied output layer is: those stay float32."""
    result = copy.deepcopy(model)
    weights = {tensor.name: tensor for tensor in result.graph.initializer}
    for node in list(result.graph.node):
        if node.op_type == "Transpose" and node.input[0] in weights:
            array = numpy_helper.to_array(weights[node.input[0]])
            order = next((list(part.ints) for part in node.attribute if part.name == "perm"), None)
            array = np.ascontiguousarray(array.transpose(order))
            result.graph.initializer.append(numpy_helper.from_array(array, node.output[0]))
            result.graph.node.remove(node)
    return result
