"""Files of YAML: their text without quotes is read by the type of its field, and each key stands once."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import yaml

from reluformers.data.checked_fields import PlainText, check_mapping, read_as


def read_sections(path: str | Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Read what a recipe says, over what its base says, with some values changed; see `load_recipe`."""
    sections = dict(check_mapping(str(path), _parse_file(path) or {}))
    base = sections.pop("base", None)
    merged = {} if base is None else read_sections(Path(path).parent / str(base))
    for name, values in sections.items():
        both_are_maps = isinstance(values, dict) and isinstance(merged.get(name), dict)
        merged[name] = {**merged[name], **values} if both_are_maps else values
    override(merged, overrides)
    return merged


class _Loader(yaml.SafeLoader):
    """Leaves text without quotes, other than null, to the type of its field, and takes each key once."""

    yaml_implicit_resolvers: ClassVar = {
        first: [(tag, form) for tag, form in forms if tag.endswith((":null", ":merge"))]
        for first, forms in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_scalar(self, node: yaml.Node) -> str:
        """The text of a scalar."""
        text = super().construct_scalar(node)
        return text if node.style else PlainText(text)

    def compose_mapping_node(self, anchor: str | None) -> yaml.MappingNode:
        """A mapping, whose keys are text; an error if one is written twice."""
        node = super().compose_mapping_node(anchor)
        seen = []
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.composer.ComposerError(None, None, f"{key.value!r} is given twice", key.start_mark)
            seen.append(key.value)
            key.style = "'"
        return node


class _Dumper(yaml.SafeDumper):
    """Quotes text that would be read as something else."""

    def represent_str(self, text: str) -> yaml.Node:
        """A scalar of text."""
        is_clear = read_as(Any, PlainText(text)) == text
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=None if is_clear else "'")


_Dumper.add_representer(str, _Dumper.represent_str)


def read_yaml(path: str | Path) -> Any:
    """What a file of YAML holds; a ValueError names one that is none."""
    return read_as(Any, _parse_file(path))


def _parse_file(path: str | Path) -> Any:
    return _parse_yaml(Path(path).read_bytes(), str(path))


def to_yaml(sections: dict[str, Any]) -> str:
    """Text that `read_yaml` reads the same."""
    return yaml.dump(sections, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def _parse_yaml(text: str | bytes, name: str) -> Any:
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise ValueError(f"{name}: not valid YAML ({error})") from error


def read_fields(texts: Sequence[str], form: str) -> dict[str, Any]:
    """Field → value of changes such as "dropout=0.1", of a form such as "FIELD=VALUE"; see `override`."""
    fields: dict[str, Any] = {}
    override(fields, texts, form)
    return fields


def override(sections: dict[str, Any], texts: Sequence[str], form: str = "section.key=value") -> None:
    """Set values of nested mappings in place by texts of a form, such as "training.seed=3"; a value is YAML.

    Raises:
        ValueError: a text is not of this form, not YAML, or the second for the same key.
    """
    given = set()
    for text in texts:
        name, equals, value = text.partition("=")
        *parents, last = name.split(".")
        if not equals or not last or len(parents) < form.count("."):
            raise ValueError(f"{text!r} is not of the form {form}")
        if name in given:
            raise ValueError(f"{name} is given twice")
        given.add(name)
        values = sections
        for parent in parents:
            if values.get(parent) is None:
                values[parent] = {}
            values = check_mapping(parent, values[parent])
        values[last] = _parse_yaml(value, text)
