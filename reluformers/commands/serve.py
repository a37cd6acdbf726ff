r"""Serve a saved folder over HTTP, with the handler that an Inference Endpoint runs.

This runs the code in the folder, without the tokens of the environment and of `hf auth login`. The server computes
waiting requests together. After SIGTERM or Ctrl-C it answers the waiting requests and ends.

Examples:
    reluformers serve ./runs/reluformer
    curl 127.0.0.1:8080 -H 'Content-Type: application/json' -d '{"inputs": "A dog runs."}'
"""

import argparse
from pathlib import Path

from reluformers.app.app import drop_tokens
from reluformers.onnx import SUFFIXES
from reluformers.saved_models import DTYPES, check_is_one_model, set_precision
from reluformers.serving.server import bind, build_server, load_handler, serve
from reluformers.training.checkpoints import check_model
from reluformers.translation.decoding import note_on_search


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("model", help="folder of a saved model")
    parser.add_argument("--dtype", choices=DTYPES, help="data type to compute in; without it, the saved model's")
    parser.add_argument("--precision", choices=SUFFIXES, help="number format of an export; without it, the finest")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; 0.0.0.0 means all of the machine")
    parser.add_argument(
        "--port", type=int, default=8080, help="port to listen on, or 0 for any free port (default: %(default)s)"
    )


def run(options: argparse.Namespace) -> None:
    """Load and serve."""
    check_is_one_model(options.model)
    check_model(options.model)
    bound = bind(options.host, options.port)
    drop_tokens()
    choice = {"precision": options.precision} if options.precision else {}
    handler = load_handler(options.model, **choice)
    set_precision(handler.pipeline.model, options.dtype)
    server = build_server(handler, title=Path(options.model).resolve().name)
    host, port = bound.getsockname()[:2]
    note = note_on_search(handler.pipeline.model)
    print(f"{options.model} is served at http://{host}:{port}, described at http://{host}:{port}/docs", flush=True)
    if note:
        print(note, flush=True)
    serve(server, bound)
