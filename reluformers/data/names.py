"""Names of data sources without their places on this machine."""

import re
from pathlib import Path
from typing import Any

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9_][\w.-]*")
_HELD_OUT = re.compile(r"(train|validation|valid|val|dev)(?![A-Za-z])")
_DATA_FILE = re.compile(r"\.(jsonl?|parquet|csv|tsv|txt|gz)$")


def source_name(source: Any) -> str | None:
    """Name of a data source without its path on this machine: a Hub id as it is, else the last part of a path."""
    if isinstance(source, list | tuple):
        names = [name for item in source if (name := source_name(item))]
        return ", ".join(dict.fromkeys(names)) or None
    if isinstance(source, dict):
        return source_name(list(source.values()))
    if not isinstance(source, str) or not source.strip():
        return None
    if is_hub_id(source):
        return source
    return re.split(r"[/\\]", source.rstrip("/\\"))[-1] or None


def named_split(source: Any, default: str) -> str:
    """What a split is called by the name of its file, such as validation.jsonl or dev.en; the default if by none."""
    if isinstance(source, dict | list | tuple):
        names = source.values() if isinstance(source, dict) else source
        source = next(iter(names), None)
    match = _HELD_OUT.match(Path(source).name) if isinstance(source, str) and Path(source).suffix else None
    return match[1] if match else default


def marked_as_local(path: str | None) -> str | None:
    """A path with ./ before it if it is on this machine and could be taken for a Hub id on another one."""
    is_like_id = path is not None and _HUB_ID.fullmatch(path) is not None and Path(path).exists()
    return f"./{path}" if is_like_id else path


def is_hub_id(source: Any) -> bool:
    """Whether a data source is one of the Hub: looks like owner/name and is nothing on this machine."""
    return (
        isinstance(source, str)
        and _HUB_ID.fullmatch(source) is not None
        and not _DATA_FILE.search(source)
        and not Path(source).exists()
    )
