"""Languages of a saved model, as its folder knows them."""

from pathlib import Path

import yaml
from transformers.utils import cached_file

# the recipe of a training run, and what OPUS-MT models and those made of them have
_FILES = {"recipe.yaml": "data", "tokenizer_config.json": None}
_NAMES = ("source_lang", "target_lang")


def saved_languages(name_or_path: str | Path) -> tuple[str | None, str | None]:
    """Source and target language of a translation model, None where neither recipe nor tokenizer says it.

    Args:
        name_or_path: folder of a saved model, or a Hub id.
    """
    found: dict[str, str] = {}
    for name, section in _FILES.items():
        try:
            content = yaml.safe_load(Path(cached_file(str(name_or_path), name)).read_text(encoding="utf-8"))
            content = content.get(section) or {} if section else content
            found = {key: content[key] for key in _NAMES if isinstance(content.get(key), str)} | found
        except (OSError, ValueError, AttributeError, yaml.YAMLError):
            continue  # whoever needs the file says what is wrong with it
    return found.get(_NAMES[0]), found.get(_NAMES[1])
