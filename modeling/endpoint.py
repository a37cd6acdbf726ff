# Copyright 2026 the reluformers authors
# SPDX-License-Identifier: Apache-2.0
"""Requests to an Inference Endpoint that serves a folder of this library.

The server imports handler.py alone, so that this module, the task's handler and what they import become that one file.
"""

from typing import Any, ClassVar

from transformers import pipeline
from transformers.utils import logging

logger = logging.get_logger(__name__)

MAX_BATCH = 32
BATCH_SIZE = 8  # The model computes `BATCH_SIZE` inputs of a request at a time.
# Clients send the `IGNORED` parameters for any model, but a model of two languages has no use for them.
IGNORED = ("src_lang", "tgt_lang", "clean_up_tokenization_spaces")


class RequestHandler:
    """Open the model of a folder once and answer requests with it; a task's `read` checks its inputs."""

    task: ClassVar[str]
    # Each parameter of a request has the bounds of a number, both included, or a list of what is allowed.
    parameters: ClassVar[dict[str, tuple | list]]

    def __init__(self, path: str = ""):
        self.pipeline = pipeline(self.task, model=path or ".", trust_remote_code=True)

    def __call__(self, data: Any) -> list[Any]:
        """Answer one request, such as `InferenceClient` of huggingface_hub sends it.

        Args:
            data: `inputs`: one or a list; `parameters`, if wanted: some of those above, also inside of
                `generate_parameters`. `options` are for the server.

        Raises:
            ValueError: the request cannot be answered, in one line; the server gives HTTP 400 with it.
            RuntimeError: the model failed, and only the log says why.
        """
        try:
            if not isinstance(data, dict) or not {"inputs"} <= data.keys() <= {"inputs", "parameters", "options"}:
                raise ValueError('the body must be an object with "inputs", and "parameters" if wanted')
            parameters = self.check_parameters(data.get("parameters"))
            inputs = data["inputs"] if isinstance(data["inputs"], list) else [data["inputs"]]
            if not 1 <= len(inputs) <= MAX_BATCH:
                raise ValueError(f"inputs must be 1 to {MAX_BATCH}, got {len(inputs)}")
            answers = self.pipeline(self.read(inputs), batch_size=BATCH_SIZE, **parameters)
            # The answer to one image is a list of classes, and to one text a list of one translation.
            return answers if isinstance(data["inputs"], list) or self.task == "translation" else answers[0]
        # The sender made a mistake: the answer says why, in one line.
        except ValueError as error:
            raise ValueError(" ".join(str(error).split())) from error
        # The fault is the endpoint's own: the sender learns no path and no line of code.
        except Exception:
            logger.exception("a request failed")
            raise RuntimeError("the model failed on this request; the log of the endpoint says why") from None

    def check_parameters(self, parameters: Any) -> dict[str, Any]:
        """Refuse what is not allowed, and leave out what is null or `IGNORED`."""
        given = {}
        for name in ("parameters", "generate_parameters"):  # Some clients put `generate_parameters` into `parameters`.
            if not isinstance(parameters, dict | None):
                raise ValueError(f"{name} must be an object, got {parameters!r:.50}")
            given |= parameters or {}
            parameters = given.pop("generate_parameters", None)
        given = {name: value for name, value in given.items() if value is not None and name not in IGNORED}
        for name, value in given.items():
            allowed = self.parameters.get(name)
            if allowed is None:
                raise ValueError(f"unknown parameter {name!r:.50}; allowed are {', '.join(self.parameters)}")
            if isinstance(allowed, list):
                fits, wanted = value in allowed, f"one of {allowed}"
            else:
                low, high = allowed
                fits = type(value) in (int, type(low)) and low <= value <= high
                wanted = f"a number from {low} to {high}"
            if not fits:
                raise ValueError(f"{name} must be {wanted}, got {value!r:.50}")
        return given
