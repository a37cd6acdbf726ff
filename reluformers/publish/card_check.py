"""Checks a card before it goes to the Hub, by the Hub's own rules and by ours, without a network."""

import logging
import re
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import ModelCard

from reluformers.errors import describe_error
from reluformers.files import parse_yaml
from reluformers.tasks import TASKS

from .secrets import find_secret, is_own_place

# https://huggingface.co/docs/hub/repositories-licenses
LICENCES = frozenset(
    """
    apache-2.0 mit openrail bigscience-openrail-m creativeml-openrail-m bigscience-bloom-rail-1.0 bigcode-openrail-m
    afl-3.0 artistic-2.0 bsl-1.0 bsd bsd-2-clause bsd-3-clause bsd-3-clause-clear c-uda cc cc0-1.0 cc-by-2.0 cc-by-2.5
    cc-by-3.0 cc-by-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nd-4.0 cc-by-nc-nd-3.0
    cc-by-nc-nd-4.0 cc-by-nc-sa-2.0 cc-by-nc-sa-3.0 cc-by-nc-sa-4.0 cdla-sharing-1.0 cdla-permissive-1.0
    cdla-permissive-2.0 wtfpl ecl-2.0 epl-1.0 epl-2.0 etalab-2.0 eupl-1.1 eupl-1.2 agpl-3.0 gfdl gpl gpl-2.0 gpl-3.0
    lgpl lgpl-2.1 lgpl-3.0 isc h-research intel-research lppl-1.3c ms-pl apple-ascl apple-amlr mpl-2.0 odc-by odbl
    openmdw-1.0 openrail++ osl-3.0 postgresql ofl-1.1 ncsa unlicense zlib pddl lgpl-lr deepfloyd-if-license
    fair-noncommercial-research-license llama2 llama3 llama3.1 llama3.2 llama3.3 llama4 grok2-community gemma unknown
    other
    """.split()  # noqa: SIM905 (a list of them would take a page)
)
PIPELINE_TAGS = tuple(TASKS)
PLACEHOLDER = "[More Information Needed]"

LANGUAGE_CODE = re.compile(r"[a-z]{2,3}|code|multilingual|other|unknown")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9_][\w.-]*)?")
_LISTS = ("tags", "datasets", "metrics", "language")
_LOCAL_PATH = re.compile(r"(?<![\w./:~<)-])~?/(?:[\w.+-]+/)+[\w.+-]+|\b[A-Za-z]:\\\w+|\bfile://")
_PICTURE = re.compile(r"!\[[^\]]*\]\(([^)\s]+)\)")
_METADATA = re.compile(r"\A---\r?\n.*?\r?\n---\r?\n", re.DOTALL)


def check_card(path: str | Path) -> ModelCard:
    """Check a card with the pictures beside it.

    Args:
        path: README.md of the folder that is to be published.

    Returns:
        The card.

    Raises:
        ValueError: the Hub would refuse it, it shows a picture that is not there, has a gap that nobody filled, or
            gives away a path of this machine or a token.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: the card cannot be read ({error})") from error
    return check_card_text(text, path)


def check_card_text(text: str, path: str | Path) -> ModelCard:
    """Check a card that is to be written at `path`; see `check_card`."""
    path = Path(path)
    if not _METADATA.match(text):
        raise ValueError(f"{path}: the card has no metadata; it must start with a block of YAML between lines ---")
    # the client says the same as we do, and more loudly
    logging.getLogger("huggingface_hub.repocard_data").setLevel(logging.CRITICAL)
    try:
        metadata = parse_yaml(_METADATA.match(text)[0].strip("-\r\n ")) or {}
    except ValueError as error:
        raise ValueError(f"{path}: the metadata of the card are no YAML ({describe_error(error)})") from error
    # pictures are looked for only where the metadata have the shape that names them
    problems = _metadata_problems(metadata) or [*_text_problems(text), *_missing_pictures(text, metadata, path)]
    if problems:
        raise ValueError(f"{path}: {problems[0]}")
    try:
        return ModelCard(text, ignore_metadata_errors=True)
    except (ValueError, TypeError, KeyError, AttributeError, yaml.YAMLError) as error:
        raise ValueError(f"{path}: the metadata of the card cannot be read ({describe_error(error)})") from error


def check_licence(licence: str) -> None:
    """Refuse a licence that the Hub does not know.

    Raises:
        ValueError: it is not in the Hub's list.
    """
    if licence not in LICENCES:
        raise ValueError(f"licence {licence!r} is none of the Hub's list, which has for example apache-2.0 and mit")


def pictures(text: str) -> list[str]:
    """Names of the pictures that a card shows from its own repository."""
    return [name for name in _PICTURE.findall(text) if "://" not in name]


def _metadata_problems(metadata: Any) -> list[str]:
    if not isinstance(metadata, dict):
        return ["the metadata of the card are no mapping"]
    problems = []
    if metadata.get("library_name") != "transformers":
        problems.append(f"library_name is {metadata.get('library_name')!r}, but must be 'transformers'")
    if metadata.get("pipeline_tag") not in PIPELINE_TAGS:
        problems.append(f"pipeline_tag is {metadata.get('pipeline_tag')!r}, but must be one of {PIPELINE_TAGS}")
    licences = metadata.get("license")
    for licence in (licences or [None]) if isinstance(licences, list) else [licences]:
        if not isinstance(licence, str) or licence not in LICENCES:
            problems.append(f"license is {licence!r}, which is none of the Hub's list, such as apache-2.0")
    for name in _LISTS:
        values = metadata.get(name, [])
        if not all(isinstance(value, str) for value in (values if isinstance(values, list) else [values])):
            problems.append(f"{name} is {values!r}, but must be a list of strings; quote no, on and yes")
    if not problems:
        problems += _value_problems(metadata)
    return problems


def _value_problems(metadata: dict[str, Any]) -> list[str]:
    problems = []
    for name, allowed in (("language", LANGUAGE_CODE), ("datasets", _HUB_ID)):
        values = metadata.get(name, [])
        for value in values if isinstance(values, list) else [values]:
            if not allowed.fullmatch(value):
                kind = "an ISO 639 code in lower case" if name == "language" else "an id of the Hub"
                problems.append(f"{name} has {value!r}, but must be {kind}")
    widgets = metadata.get("widget") or []
    if not isinstance(widgets, list) or not all(_is_example(it) for it in widgets):
        problems.append("widget must be a list of examples with text or src, which are strings")
    return problems + _index_problems(metadata.get("model-index", []))


def _is_example(widget: Any) -> bool:
    inputs = [widget[key] for key in ("text", "src") if key in widget] if isinstance(widget, dict) else []
    return bool(inputs) and all(isinstance(value, str) for value in inputs)


def _index_problems(index: Any) -> list[str]:
    """What is wrong with model-index: it needs name, results, task.type, dataset.type and .name, metrics."""
    try:
        for model in index:
            fields = [("name", model["name"])]
            for result in model["results"]:
                fields += [("task.type", result["task"]["type"])]
                fields += [(f"dataset.{key}", result["dataset"][key]) for key in ("type", "name")]
                fields += [("metrics.type", metric["type"]) for metric in result["metrics"]]
                if any(metric.get("value") is None for metric in result["metrics"]):
                    return ["model-index has a metric without a value"]
            for name, value in fields:
                if not isinstance(value, str):
                    return [f"model-index has {name} {value!r}, but it must be a string"]
    except (KeyError, TypeError, AttributeError) as error:
        return [f"model-index is not complete: {type(error).__name__} {error}"]
    return []


def _text_problems(text: str) -> list[str]:
    problems = [f"the card still holds {PLACEHOLDER}"] if PLACEHOLDER in text else []
    if found := next(filter(is_own_place, _LOCAL_PATH.findall(text)), None):
        problems.append(f"the card holds a path of this machine, {found}; take it out")
    if secret := find_secret(text):
        problems.append(f"the card holds {secret.what}; take it out, and revoke it if others saw it")
    return problems


def _missing_pictures(text: str, metadata: dict[str, Any], path: Path) -> list[str]:
    names = [*pictures(text), *(it["src"] for it in metadata.get("widget") or [] if "://" not in it.get("src", "://"))]
    return [
        f"the card shows {name}, but there is no such file beside it"
        for name in dict.fromkeys(names)
        if not (path.parent / name).is_file()
    ]
