"""The papers' tables: one YAML file each, with a row for each of theirs, and what they claim."""

import copy
import dataclasses
import fnmatch
import functools
import hashlib
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reluformers.data.checked_fields import check_name
from reluformers.data.names import source_name
from reluformers.training.recipe import Recipe
from reluformers.training.yaml_files import override, read_sections, read_yaml

from .tasks import MEASURES, task_named

RECIPES = Path(__file__).resolve().parents[1] / "recipes"
SCORE = "score"
_CLAIM = re.compile(r"(?:(?P<measure>\w+): )?(?P<first>\S+) (?P<relation>>=|<=|>|<|~) (?P<second>\S+)")
_SPLITS = ("train", "validation", "test")
_PLACES = ("path", "name", "revision", *_SPLITS)


@dataclass(frozen=True)
class Claim:
    """What a paper says of two rows.

    Args:
        first, second: names of rows; a pattern, "*/relu", is the one of its rows that has the lowest validation loss.
        relation: `">"`, first is better (of a measure: greater); `">="`, first is worse by less than the table's
            margin; `"~"`, they differ by less than the margin.
        measure: `SCORE`, the validation loss and beside it the task's metrics, or one of `MEASURES`.
        text: the claim as it is written.
        is_ours: whether no source makes it: a question that we ask of its rows.
    """

    first: str
    second: str
    relation: str
    measure: str
    text: str
    is_ours: bool = False

    @classmethod
    def parse(cls, text: str, is_ours: bool = False) -> "Claim":
        """Read "relu < softmax" or "entropy: softmax > relu"."""
        match = _CLAIM.fullmatch(text)
        if not match:
            raise ValueError(f"claim {text!r} is not of the form [measure: ]row >|>=|~|<|<= row")
        measure = match["measure"] or SCORE
        check_name(measure, (SCORE, *MEASURES), "measure")
        first = match["first"]
        relation = match["relation"]
        second = match["second"]
        if relation.startswith("<"):
            first, second, relation = second, first, relation.replace("<", ">")
        return cls(first, second, relation, measure, text, is_ours)


@dataclass(frozen=True)
class Row:
    """A row of a table.

    Args:
        name: in claims and on the command line.
        paper: what the source prints for it, score or words; None where it has no such row.
        sections: what it changes in the recipe.
    """

    name: str
    paper: Any
    sections: dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Setting:
    """Data and sizes for the rows: the paper's own, or smaller ones.

    Args:
        recipe: file beside the table's.
        rows: patterns of the names of rows that belong to it.
        set: pattern of names of rows → sections that those rows change, before their own.
        evaluate: as of the table, in its place.
        note: what was cut, in words.
    """

    recipe: str
    rows: list[str] = field(default_factory=lambda: ["*"])
    set: dict[str, Any] = field(default_factory=dict)
    evaluate: dict[str, Any] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True)
class Table:
    """One table or figure of a source.

    Args:
        name: "reluformer/t2".
        path: its file.
        title: what it is, with source and number.
        rows: by name.
        settings: by name; `"paper"` is the source's own.
        claims: what the source says of the rows, and what we ask of them.
        margin: the smallest difference of the metrics that matters, in their unit.
        baseline: the row that others are compared with; rows "GROUP/NAME" are with "GROUP/BASELINE".
        evaluate: further options of `reluformers evaluate`.
    """

    name: str
    path: Path
    title: str
    rows: dict[str, Row]
    settings: dict[str, Setting]
    claims: list[Claim]
    margin: float
    baseline: str
    evaluate: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def load(cls, name: str) -> "Table":
        """Read a table.

        Args:
            name: a file, or SOURCE/TABLE of those in research/recipes.
        """
        path = Path(name)
        if path.suffix not in (".yaml", ".yml"):
            check_name(name, list_tables(), "table")
            path = RECIPES / f"{name}.yaml"
        values = read_yaml(path)
        rows = _rows(values.pop("rows", {})) | _grid(values.pop("grid", {}))
        claims = [Claim.parse(text) for text in values.pop("claims", [])]
        claims += [Claim.parse(text, is_ours=True) for text in values.pop("questions", [])]
        for row in (name for claim in claims for name in (claim.first, claim.second)):
            if not fnmatch.filter(rows, row):
                check_name(row, rows, "row")
        try:
            settings = {name: Setting(**one) for name, one in values.pop("settings", {}).items()}
            name = "/".join(path.with_suffix("").parts[-2:])
            return cls(name=name, path=path, rows=rows, settings=settings, claims=claims, **values)
        except TypeError as error:  # a key that is missing or not known
            raise ValueError(f"{path}: {error}") from error

    @property
    def is_ours(self) -> bool:
        """Whether no paper has it."""
        return self.name.startswith("open/")

    def baseline_of(self, row: str) -> str:
        """The row that a row is compared with."""
        group = row.split("/")[: -_parts(self.baseline)]
        return "/".join([*group, self.baseline])

    def setting(self, name: str) -> Setting:
        """The setting of that name; a `ValueError` where there is none."""
        check_name(name, self.settings, "setting")
        return self.settings[name]

    def rows_of(self, setting: str, patterns: Sequence[str] = ("*",)) -> list[Row]:
        """Rows of a setting that match one of `patterns`.

        Raises:
            ValueError: a pattern fits none.
        """
        own = [name for name in self.rows if _matches(name, self.setting(setting).rows)]
        for pattern in patterns:
            if not fnmatch.filter(own, pattern):
                raise ValueError(f"no row is called {pattern!r}; there are {', '.join(own)}")
        return [self.rows[name] for name in own if _matches(name, patterns)]

    def evaluate_options(self, setting: str) -> dict[str, Any]:
        """Options of `reluformers evaluate` beside those that the recipe gives."""
        return {**self.evaluate, **self.setting(setting).evaluate}

    def recipe(self, setting: str, row: Row, seed: int, overrides: Sequence[str] = ()) -> Recipe:
        """The complete recipe of a row.

        Args:
            setting: name of one.
            row: of `rows`.
            seed: of the training.
            overrides: "section.key=value" each, of all rows, such as where the data lie.
        """
        chosen = self.setting(setting)
        sections = copy.deepcopy(_base_sections(self.path.parent / chosen.recipe))
        common = [changes for pattern, changes in chosen.set.items() if fnmatch.fnmatchcase(row.name, pattern)]
        for changes in (*common, row.sections, {"training": {"seed": seed}}):
            sections = _changed(sections, changes)
        override(sections, overrides)
        source = f"{self.path}, row {row.name!r} of setting {setting!r}"
        return task_named(sections.get("task")).recipe_class.from_sections(sections, source)


def list_tables() -> list[str]:
    """Names of the tables in research/recipes."""
    return sorted(f"{path.parent.name}/{path.stem}" for path in RECIPES.glob("*/*.yaml"))


def public_sections(recipe: Recipe) -> dict[str, Any]:
    """A recipe with names for places of data, so that it reads the same on every machine."""
    sections = recipe.to_dict()
    data = dict(sections["data"])
    if data["path"] is None:
        data |= {split: source_name(data[split]) for split in _SPLITS}
    else:
        data["path"] = source_name(data["path"])
    return {**sections, "data": data}


def run_name(recipe: Recipe) -> str:
    """Name of a run by all that decides what comes out, the same on every machine: a hash, and the seed."""
    return f"{_fingerprint(recipe, public_sections(recipe)['data'])}-{recipe.training['seed']}"


def row_key(recipe: Recipe) -> str:
    """Hash of a recipe that is the same for every seed and every path of the data."""
    data = public_sections(recipe)["data"]
    return _fingerprint(recipe, {name: value for name, value in data.items() if name not in _PLACES})


def _fingerprint(recipe: Recipe, data: dict[str, Any]) -> str:
    sections = {**recipe.to_dict(), "data": data}
    for item in dataclasses.fields(recipe):
        if dataclasses.is_dataclass(item.default_factory):
            # a field that the library gains later makes no other run, as long as nobody sets it
            usual = dataclasses.asdict(item.default_factory())
            given = sections[item.name]
            sections[item.name] = {name: value for name, value in given.items() if value != usual[name]}
    sections["training"] = {name: value for name, value in recipe.training.items() if name != "seed"}
    text = json.dumps(sections, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _parts(name: str) -> int:
    return name.count("/") + 1


def _changed(sections: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Sections with others over them, mappings within mappings too."""
    merged = dict(sections)
    for name, value in changes.items():
        both_are_maps = isinstance(value, Mapping) and isinstance(merged.get(name), Mapping)
        merged[name] = _changed(merged[name], value) if both_are_maps else value
    return merged


@functools.cache
def _base_sections(path: Path) -> dict[str, Any]:
    """Sections of a setting's recipe, which all its rows start from."""
    return read_sections(path)


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _rows(values: Mapping[str, Any]) -> dict[str, Row]:
    """Rows that are written out: name → sections, and `paper`."""
    rows = {}
    for name, sections in values.items():
        sections = dict(sections)
        rows[str(name)] = Row(str(name), sections.pop("paper", None), sections)  # 64 is a number in YAML
    return rows


def _grid(axes: Mapping[str, Mapping[str, Any]]) -> dict[str, Row]:
    """Rows of a figure: every combination of one value of each axis, named value/value."""
    values = [_rows(rows).values() for rows in axes.values()]
    grid = {}
    for chosen in itertools.product(*values) if values else ():
        sections: dict[str, Any] = {}
        for row in chosen:
            sections = _changed(sections, row.sections)
        name = "/".join(row.name for row in chosen)
        grid[name] = Row(name, None, sections)
    return grid
