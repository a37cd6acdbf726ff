"""An input and what a model answered to it, as a model card shows them."""

from dataclasses import dataclass
from typing import Any


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
