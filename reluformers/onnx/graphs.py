"""Makes ONNX graphs of modules of PyTorch, and one graph of two."""

import copy
import logging
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import onnx
import onnx_ir
import torch
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper
from onnx_ir.passes import common
from onnxscript import optimizer
from torch import Tensor, nn

from reluformers.errors import describe_error

IR_VERSION = 10  # what onnxruntime has read since 1.18


class _Unnamed(nn.Module):
    """A module of dicts as one of tuples: names of ONNX need not be names of Python."""

    def __init__(self, module: nn.Module, names: Sequence[str]):
        super().__init__()
        self.module, self.names = module, names

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.module(dict(zip(self.names, inputs, strict=True))).values())


def export_graph(module: nn.Module, inputs: Mapping[str, Tensor], axes: Mapping[str, Sequence[str | None]]):
    """Export a module as one ONNX graph of float32.

    Args:
        module: takes a dict of tensors and returns one; the names are those of the graph.
        inputs: an example, whose axes have different sizes of at least 2.
        axes: names of the axes of each input, None for those whose size stays.

    Returns:
        The `ModelProto`.

    Raises:
        ValueError: an operation of the module has no form in ONNX; names it.
    """
    inputs, auto = dict(inputs), torch.export.Dim.AUTO
    shapes = tuple({axis: auto for axis, title in enumerate(axes[name]) if title} for name in inputs)
    with torch.no_grad(), _quiet():
        outputs = list(module(inputs))
        try:
            program = torch.onnx.export(
                _Unnamed(module, list(inputs)),
                tuple(inputs.values()),
                dynamic_shapes={"inputs": shapes},
                input_names=list(inputs),
                output_names=outputs,
                dynamo=True,
                optimize=False,
                verbose=False,
            )
        except Exception as error:
            cause = error.__cause__ or error  # the first one is pages long
            raise ValueError(f"the model cannot be a graph of ONNX: {describe_error(cause)}") from error
        model = _folded(program.model)
    _forget_origin(model)
    _name_axes(model, axes)
    model.ir_version = min(model.ir_version, IR_VERSION)
    return model


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep to itself what an export says of packages that are not needed and of its own future."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


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
        common.OutputFixPass(),
        common.NameFixPass(),
    )(model)
    return onnx_ir.to_proto(model)


def _forget_origin(model: ModelProto) -> None:
    """Remove lines and paths of the code that a graph was made of, which are most of a small file."""
    graph = model.graph
    for part in (*graph.node, *graph.input, *graph.output, *graph.initializer, graph, model):
        part.doc_string = ""
        del part.metadata_props[:]
    del graph.value_info[:]
    model.producer_name, model.producer_version = "reluformers", ""


def _name_axes(model: ModelProto, axes: Mapping[str, Sequence[str | None]]) -> None:
    """Give the axes of inputs and outputs their names, where the exporter has numbered them."""
    names = {}
    for value in model.graph.input:
        for title, axis in zip(axes[value.name], value.type.tensor_type.shape.dim, strict=True):
            if title and axis.dim_param:
                names.setdefault(axis.dim_param, title)
            elif title:
                raise ValueError(f"the axis {title!r} of {value.name} is {axis.dim_value} and cannot change")
    for value in (*model.graph.input, *model.graph.output):
        for axis in value.type.tensor_type.shape.dim:
            if axis.dim_param:
                axis.dim_param = re.sub(r"\w+", lambda found: names.get(found[0], found[0]), axis.dim_param)


def input_names(model: ModelProto) -> list[str]:
    """Names of the inputs of a graph."""
    return [value.name for value in model.graph.input]


def output_names(model: ModelProto) -> list[str]:
    """Names of the outputs of a graph."""
    return [value.name for value in model.graph.output]


def operators(model: ModelProto) -> set[str]:
    """Operators of a graph and of the graphs inside of it, those that are not of the standard with their domain."""
    return {f"{node.domain}.{node.op_type}" if node.domain else node.op_type for node in _all_nodes(model)}


def _all_nodes(model: ModelProto) -> Iterator[NodeProto]:
    """Nodes of a graph and of the graphs inside of it."""
    pending = list(model.graph.node)
    while pending:
        node = pending.pop()
        yield node
        for attribute in node.attribute:
            pending += attribute.g.node


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
    body, first = copy.deepcopy(body), onnx.compose.add_prefix(first, "first/", rename_inputs=False)
    others = [name for name in input_names(body) if name not in kept]
    if not set(input_names(first)) <= set(others):
        raise ValueError(f"first takes {input_names(first)}, but must take some of {others}")
    types = {value.name: value.type.tensor_type.elem_type for value in body.graph.input}
    chosen, constants = {name: f"chosen/{name}" for name in kept}, []
    for name, numbers in (("start", [0]), ("axis", [2])):
        constants.append(helper.make_tensor(f"none/{name}", TensorProto.INT64, [1], numbers))
    given, made = [], list(first.graph.node)
    for name, source in kept.items():
        given.append(helper.make_node("Identity", [name], [f"given/{name}"], f"given/{name}"))
        if source is None:
            made.append(
                helper.make_node(
                    "Slice", [name, "none/start", "none/start", "none/axis"], [f"made/{name}"], f"made/{name}"
                )
            )
        else:
            made.append(helper.make_node("Identity", [f"first/{source}"], [f"made/{name}"], f"made/{name}"))

    def branch(title: str, nodes: list) -> onnx.GraphProto:
        results = [helper.make_tensor_value_info(f"{title}/{name}", types[name], None) for name in kept]
        return helper.make_graph(nodes, title, [], results)

    choice = helper.make_node(
        "If",
        [switch],
        list(chosen.values()),
        "choose",
        then_branch=branch("given", given),
        else_branch=branch("made", made),
    )
    for node in body.graph.node:
        for place, name in enumerate(node.input):
            node.input[place] = chosen.get(name, name)
    handed = [helper.make_node("Identity", [chosen[name]], [output], output) for name, output in passed.items()]
    inputs = {value.name: value for value in body.graph.input}
    results = [_renamed(inputs[name], output) for name, output in passed.items()]
    graph = helper.make_graph(
        [choice, *body.graph.node, *handed],
        "merged",
        [*body.graph.input, helper.make_tensor_value_info(switch, TensorProto.BOOL, [1])],
        [*body.graph.output, *results],
        [*body.graph.initializer, *first.graph.initializer, *constants],
    )
    imports = {entry.domain: entry.version for model in (first, body) for entry in model.opset_import}
    merged = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid(*entry) for entry in imports.items()],
        ir_version=body.ir_version,
        producer_name=body.producer_name,
    )
    _share_initializers(merged)
    return merged


def _renamed(value: ValueInfoProto, name: str) -> ValueInfoProto:
    renamed = copy.deepcopy(value)
    renamed.name = name
    return renamed


def _share_initializers(model: ModelProto) -> None:
    """Keep each tensor once."""
    names, found = {}, {}
    for tensor in list(model.graph.initializer):
        key = (tensor.data_type, tuple(tensor.dims), tensor.raw_data or tensor.SerializeToString())
        if (same := found.setdefault(key, tensor.name)) != tensor.name:
            names[tensor.name] = same
            model.graph.initializer.remove(tensor)
    for node in _all_nodes(model):
        for place, name in enumerate(node.input):
            node.input[place] = names.get(name, name)
