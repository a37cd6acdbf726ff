"""What data are, in words: by what is known of them here, and by the README.md that lies beside them."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from reluformers.data.names import is_hub_id
from reluformers.files import parse_yaml


class DataWords(NamedTuple):
    """Name, domain and terms of data; None for what is not known."""

    name: str | None = None
    domain: str | None = None
    terms: str | None = None


NOTHING_SAID = DataWords()
# of the data sets in docs/research/results.md; their terms are those of their pages
_KNOWN = {
    "bentrevett/multi30k": DataWords("Multi30k", "captions of everyday photographs, one sentence each"),
    "uoft-cs/cifar10": DataWords("CIFAR-10", "colour photographs of 32 × 32 pixels of animals and vehicles"),
}
_FRONT = re.compile(r"\A---\r?\n(.*?)\r?\n---\r?\n", re.DOTALL)
_MOST_WORDS = 60


def data_words(data: Mapping[str, Any], dataset: str | None, given: DataWords = NOTHING_SAID) -> DataWords:
    """Describe the data of a recipe.

    Args:
        data: section of the recipe.
        dataset: Hub id, if they have one.
        given: what the user says, which goes before everything else.

    Returns:
        What is known; of a local folder with a README.md its `pretty_name`, first paragraph and `license`.
    """
    found = _KNOWN.get(dataset or "", DataWords())
    if dataset is None:
        found = _read_beside(data)
    return DataWords(*(wish or known for wish, known in zip(given, found, strict=True)))


def _read_beside(data: Mapping[str, Any]) -> DataWords:
    source = data.get("path") or data.get("train")
    while isinstance(source, dict | list) and source:
        source = next(iter(source.values())) if isinstance(source, dict) else source[0]
    if not isinstance(source, str) or is_hub_id(source):
        return DataWords()
    try:
        place = Path(os.path.expanduser(source))
        readme = (place if place.is_dir() else place.parent) / "README.md"
        # a README beside a lone file of the working folder may be about anything
        if place.parent == Path() or not readme.is_file():
            return DataWords()
        text = readme.read_text(encoding="utf-8")
        front = parse_yaml(found[1]) if (found := _FRONT.match(text)) else {}
    except (OSError, ValueError):  # there may be no such path
        return DataWords()
    if not isinstance(front, dict) or not front:  # that of a program or a project, not the card of data
        return DataWords()
    paragraphs = (" ".join(part.split()) for part in re.split(r"\n\s*\n", _FRONT.sub("", text)))
    domain = next((part for part in paragraphs if part and part[0] not in "#|<![`-"), None)
    words = {key: front[key] for key in ("pretty_name", "license") if isinstance(front.get(key), str)}
    if domain and len(domain.split()) > _MOST_WORDS:
        domain = " ".join(domain.split()[:_MOST_WORDS]) + " …"
    return DataWords(words.get("pretty_name"), domain, words.get("license"))
