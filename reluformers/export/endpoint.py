"""Answers requests to an Inference Endpoint that serves an exported folder, whose handler.py names this class."""

from pathlib import Path
from typing import Any

from reluformers.files import read_json
from reluformers.modeling import handler_images, handler_translation
from reluformers.saved_models import EXPORT_RECORD

from .exporters import EXPORTERS


class _Graphs:
    def __init__(self, path: str, precision: str | None):
        self.pipeline = EXPORTERS[self.task].pipeline(path, precision)


class _TranslationHandler(_Graphs, handler_translation.EndpointHandler):
    pass


class _ImageHandler(_Graphs, handler_images.EndpointHandler):
    pass


class EndpointHandler:
    """Open the graphs of a folder once and answer requests with them, as models in PyTorch are served."""

    def __new__(cls, path: str = "", precision: str | None = None) -> Any:
        """The handler of the folder's task, with graphs of a precision, or the finest."""
        path = path or "."
        task = read_json(Path(path, EXPORT_RECORD))["task"]
        return {kind.task: kind for kind in (_TranslationHandler, _ImageHandler)}[task](path, precision)
