"""What data are, in words: by the README.md that lies beside them."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from huggingface_hub import DatasetCard

_MOST_WORDS = 60


class DataWords(NamedTuple):
    """Name, domain and terms of data; None for what is not known."""

    name: str | None = None
    domain: str | None = None
    terms: str | None = None


NOTHING_SAID = DataWords()


def data_words(data: Mapping[str, Any], given: DataWords = NOTHING_SAID) -> DataWords:
    """Describe the data of a recipe.

    Args:
        data: section of the recipe.
        given: what the user says, which goes before everything else.

    Returns:
        What is known; of files with a README.md beside them its `pretty_name`, first paragraph and `license`.
    """
    source = data.get("path") or data.get("train")
    while isinstance(source, dict | list) and source:
        source = next(iter(source.values())) if isinstance(source, dict) else source[0]
    place = Path(os.path.expanduser(str(source)))
    readme = (place if os.path.isdir(place) else place.parent) / "README.md"
    # a README beside a lone file of the working folder may be about anything
    if source is None or place.parent == Path() or not os.path.isfile(readme):
        return given
    card = DatasetCard(readme.read_text(encoding="utf-8"), ignore_metadata_errors=True)
    front = card.data.to_dict()
    if not front:  # that of a program or a project, not the card of data
        return given
    paragraphs = (" ".join(part.split()) for part in re.split(r"\n\s*\n", card.text))
    domain = next((part for part in paragraphs if part and part[0] not in "#|<![`-"), None)
    if domain and len(domain.split()) > _MOST_WORDS:
        domain = " ".join(domain.split()[:_MOST_WORDS]) + " …"
    found = (front.get("pretty_name"), domain, front.get("license"))
    return DataWords(*(wish or known for wish, known in zip(given, found, strict=True)))
