"""Makes ONNX graphs of modules of PyTorch, and one graph of two."""

import copy
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import onnx
import onnx_ir
import torch
from onnx import ModelProto, NodeProto, TensorProto, helper
from onnx_ir.passes import common
from onnxscript import optimizer
from torch import Tensor, nn
from transformers.utils import ModelOutput

IR_VERSION = 10  # onnxruntime reads it since 1.18.


class _Unnamed(nn.Module):
    """A function of dicts as a module of tuples: names of ONNX need not be names of Python."""

    def __init__(self, module: nn.Module, compute: Callable, names: Sequence[str]):
        super().__init__()
        self.module = module
        self.compute = compute
        self.names = names

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.compute(dict(zip(self.names, inputs, strict=True))).values())


def export_graph(
    module: nn.Module, compute: Callable, inputs: Mapping[str, tuple[Tensor, Sequence[str | None]]]
) -> ModelProto:
    """Export what a module computes as one ONNX graph of float32, without lines and paths of the code behind it.

    Args:
        module: has the weights.
        compute: calls it with a dict of tensors and returns one; the names are those of the graph.
        inputs: an example, whose axes have different sizes of at least 2, and the names of its axes, None for those
            whose size stays.
    """
    example = {name: tensor for name, (tensor, _) in inputs.items()}
    shapes = tuple({axis: title for axis, title in enumerate(axes) if title} for _, axes in inputs.values())
    with torch.no_grad(), quiet():
        outputs = list(compute(example))
        program = torch.onnx.export(
            _Unnamed(module, compute, list(example)),
            tuple(example.values()),
            dynamic_shapes={"inputs": shapes},
            input_names=list(example),
            output_names=outputs,
            dynamo=True,
            optimize=False,
            verbose=False,
        )
        model = _folded(program.model)
    del model.graph.value_info[:]
    model.producer_name = "reluformers"
    model.producer_version = ""
    model.ir_version = min(model.ir_version, IR_VERSION)
    return model


def numbered_layers(outputs: ModelOutput, kind: str) -> dict[str, Tensor]:
    """Outputs `kind.0`, `kind.1`, … of the layers' weights; none where a model gives none."""
    return {f"{kind}.{number}": weights for number, weights in enumerate(getattr(outputs, kind) or ())}


@contextmanager
def quiet() -> Iterator[None]:
    """Keep to itself what exporters and quantizers say below errors, and how they set up the root logger."""
    root = logging.getLogger()
    handlers = list(root.handlers)
    level = root.level
    disabled = root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        logging.disable(disabled)


def _folded(model: onnx_ir.Model) -> ModelProto:
    """Compute what does not depend on the inputs.

    What the exporter does by itself also leaves out additions of numbers up to 10⁻⁸, which it takes for 0: so ε of a
    norm is lost, and a null row becomes NaN.
    """
    common.InlinePass()(model)
    optimizer.fold_constants_ir(model, onnx_shape_inference=True)
    onnx_ir.passes.Sequential(
        common.RemoveUnusedNodesPass(),
        common.RemoveUnusedFunctionsPass(),
        common.RemoveUnusedOpsetsPass(),
        common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        common.DeduplicateInitializersPass(),
        common.CommonSubexpressionEliminationPass(),
        common.ClearMetadataAndDocStringPass(),
        common.OutputFixPass(),
        common.NameFixPass(),
    )(model)
    return onnx_ir.to_proto(model)


def operators(model: ModelProto) -> set[str]:
    """Operators of a graph and of the graphs inside of it, those that are not of the standard with their domain."""
    nodes = onnx_ir.from_proto(model).graph.all_nodes()
    return {f"{node.domain}.{node.op_type}" if node.domain else node.op_type for node in nodes}


def _make_state(name: str, source: str | None) -> NodeProto:
    """Make a state that is not given: an output of the first graph, or none of its time steps."""
    if source is None:
        return helper.make_node("Slice", [name, "none/start", "none/start", "none/axis"], [f"made/{name}"])
    return _copy_node(f"first/{source}", f"made/{name}")


def merge_branches(
    body: ModelProto, first: ModelProto, switch: str, kept: Mapping[str, str | None], passed: Mapping[str, str]
) -> ModelProto:
    """Put a graph that goes on from states and one that makes some of them into one, with the weights of each once.

    Args:
        body: takes states among its inputs.
        first: makes states of other inputs of `body`.
        switch: name of a new input, bool [1]: whether the states are given, and not to be made.
        kept: state that `body` takes → output of `first` that it is where none is given; None for no time steps,
            which are its third axis.
        passed: state → new output that hands it on.

    Returns:
        The merged graph, whose inputs are those of `body` and the switch.
    """
    body = copy.deepcopy(body)
    first = onnx.compose.add_prefix(first, "first/", rename_inputs=False)
    inputs = {value.name: value for value in body.graph.input}
    chosen = {name: f"chosen/{name}" for name in kept}
    given = [_copy_node(name, f"given/{name}") for name in kept]
    made = [*first.graph.node, *(_make_state(name, source) for name, source in kept.items())]
    branches = {}
    for key, title, nodes in (("then_branch", "given", given), ("else_branch", "made", made)):
        types = {f"{title}/{name}": inputs[name].type.tensor_type.elem_type for name in kept}
        results = [helper.make_tensor_value_info(name, kind, None) for name, kind in types.items()]
        branches[key] = helper.make_graph(nodes, title, [], results)
    for node in body.graph.node:
        for number, name in enumerate(node.input):
            node.input[number] = chosen.get(name, name)
    handed = [copy.deepcopy(inputs[name]) for name in passed]
    for value, output in zip(handed, passed.values(), strict=True):
        value.name = output
    constants = {"none/start": 0, "none/axis": 2}
    graph = helper.make_graph(
        [
            helper.make_node("If", [switch], list(chosen.values()), "choose", **branches),
            *body.graph.node,
            *(_copy_node(chosen[name], output) for name, output in passed.items()),
        ],
        "merged",
        [*body.graph.input, helper.make_tensor_value_info(switch, TensorProto.BOOL, [1])],
        [*body.graph.output, *handed],
        [
            *(*body.graph.initializer, *first.graph.initializer),
            *(helper.make_tensor(name, TensorProto.INT64, [1], [number]) for name, number in constants.items()),
        ],
    )
    imports = {entry.domain: entry.version for model in (first, body) for entry in model.opset_import}
    merged = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid(*entry) for entry in imports.items()],
        ir_version=body.ir_version,
        producer_name=body.producer_name,
    )
    return onnx_ir.to_proto(common.DeduplicateHashedInitializersPass()(onnx_ir.from_proto(merged)).model)


def _copy_node(name: str, output: str) -> NodeProto:
    return helper.make_node("Identity", [name], [output], output)
