# Copyright 2026 the reluformers authors
# SPDX-License-Identifier: Apache-2.0
"""Requests for translations, with bounds of what they may cost."""

from typing import Any, ClassVar

from .endpoint import RequestHandler

MAX_CHARACTERS = 10_000


class EndpointHandler(RequestHandler):
    """Translate a text or a list of texts."""

    task = "translation"
    parameters: ClassVar[dict[str, Any]] = {
        "num_beams": (1, 8),
        "max_new_tokens": (1, 512),
        "max_length": (2, 513),
        "length_penalty": (-10.0, 10.0),
        "early_stopping": [True, False],
        "no_repeat_ngram_size": (0, 100),
        "repetition_penalty": (0.01, 100.0),
        "return_alignments": [True, False],
        "truncation": [True, False, "longest_first", "only_first", "do_not_truncate"],
    }

    def check_parameters(self, parameters: Any) -> dict[str, Any]:
        """Let nothing be cut unasked, because the warning would reach the log alone and not the sender."""
        return {"truncation": False, **super().check_parameters(parameters)}

    def read(self, inputs: list[Any]) -> list[Any]:
        """Refuse texts that are too long; the pipeline checks the rest."""
        if any(isinstance(text, str) and len(text) > MAX_CHARACTERS for text in inputs):
            raise ValueError(f"a text may have {MAX_CHARACTERS} characters at most")
        return inputs
