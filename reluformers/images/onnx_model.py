"""The graph of an image classifier, and the classifier that onnxruntime makes of it."""

from collections.abc import Iterator

import onnx
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import ImageClassifierOutput

from reluformers.modeling.modeling_vision import VisionTransformerForImageClassification
from reluformers.onnx.graphs import export_graph, numbered_layers
from reluformers.onnx.precision import convert_precision
from reluformers.onnx.sessions import OnnxModel, Session

from .processing import example_pixels

NAME = "model"


def export_image_graphs(
    model: PreTrainedModel, precisions: tuple[str, ...], attentions: bool
) -> Iterator[tuple[str, str, onnx.ModelProto]]:
    """Export an image classifier as an ONNX graph for any number of images; arguments as for translation.

    Yields:
        Name, precision and graph.
    """

    def classify(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        outputs = model(**inputs, output_attentions=attentions)
        return {"logits": outputs.logits, **numbered_layers(outputs, "attentions")}

    pixels = example_pixels(model.config)["pixel_values"]
    graph = export_graph(model, classify, {"pixel_values": (pixels, ("batch_size", None, None, None))})
    for precision in precisions:
        yield NAME, precision, convert_precision(graph, precision)


class OnnxClassifier(OnnxModel):
    """An image classifier in onnxruntime."""

    main_input_name = "pixel_values"
    graph_names = (NAME,)

    def __init__(self, config: PreTrainedConfig, session: Session):
        super().__init__(config)
        self.session = session

    compute_loss = VisionTransformerForImageClassification.compute_loss

    def forward(
        self, pixel_values: Tensor, labels: Tensor | None = None, output_attentions: bool | None = None
    ) -> ImageClassifierOutput:
        """Class logits, and with labels the loss of the model; attentions if the graph was exported with them."""
        weights = self.attentions_of(self.session, "attentions") if output_attentions else []
        outputs = self.session({"pixel_values": pixel_values}, ["logits", *weights])
        logits = outputs["logits"]
        return ImageClassifierOutput(
            loss=None if labels is None else self.compute_loss(logits, labels),
            logits=logits,
            attentions=tuple(outputs[name] for name in weights) or None,
        )
