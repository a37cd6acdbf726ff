"""An input and what a model answered to it, as a model card shows them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from reluformers.files import check_text


@dataclass(frozen=True)
class Example:
    """An input of the model and its answer.

    Args:
        input: a text, or the name of a picture beside the card.
        output: the translation, or `[{"label": …, "score": …}, …]`, most likely first.
        title: what the example is called.
        reference: what a person or the data say to the input, if that is known.
    """

    input: str
    output: Any
    title: str
    reference: str | None = None

    def widget(self) -> dict[str, Any]:
        """The example as the metadata of a card hold it."""
        if isinstance(self.output, str):
            return {"text": self.input, "example_title": self.title, "output": {"text": self.output}}
        return {"src": self.input, "example_title": self.title, "output": self.output}


def read_examples(results: Mapping[str, Any], *parts: str) -> list[dict[str, str]]:
    """Return the sentences that a training run has written into its results; none where one lacks a part as text."""
    rows = results.get("examples")
    try:
        for row in rows:
            for part in parts:
                check_text(row[part], part, "examples")
    except (TypeError, KeyError, ValueError):
        return []
    return rows
