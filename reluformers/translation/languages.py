"""Languages of a saved model, as its folder knows them."""

from pathlib import Path

from transformers.utils import cached_file

from reluformers.files import parse_yaml

# the recipe of a training run, and what OPUS-MT models and those made of them have
_FILES = {"recipe.yaml": "data", "tokenizer_config.json": None}
_NAMES = ("source_lang", "target_lang")


def saved_languages(name_or_path: str | Path) -> tuple[str | None, str | None]:
    """Source and target language of a translation model, None where neither recipe nor tokenizer says it.

    Args:
        name_or_path: folder of a saved model, or a Hub id.
    """
    found: tuple[str | None, ...] = (None, None)
    for name, section in _FILES.items():
        try:
            content = parse_yaml(Path(cached_file(str(name_or_path), name)).read_text(encoding="utf-8"))
            content = content.get(section) or {} if section else content
            values = [content.get(key) for key in _NAMES]
        except (OSError, ValueError, AttributeError):
            continue  # whoever needs the file says what is wrong with it
        values = [value if isinstance(value, str) else None for value in values]
        found = tuple(known or value for known, value in zip(found, values, strict=True))
    return found
