"""Answers requests to an Inference Endpoint that serves an exported folder, whose handler.py names this class."""

from pathlib import Path

from reluformers.files import read_json
from reluformers.modeling import handler

from .exporters import EXPORTERS
from .onnx_folder import RECORD


class EndpointHandler(handler.EndpointHandler):
    """Open the graphs of a folder once and answer requests with them, as models in PyTorch are served."""

    def __init__(self, path: str = ""):
        path = path or "."
        self.task = read_json(Path(path, RECORD))["task"]
        self.pipeline = EXPORTERS[self.task].pipeline(path)
