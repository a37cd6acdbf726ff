"""One record of an evaluation: what was scored, on which rows, how, and what came out.

`evaluate` writes it; whatever compares, draws or publishes results reads it, and nothing else knows the file.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from reluformers.data.names import source_name
from reluformers.files import read_json, write_json

from .attention_report import MISSING, AttentionReport
from .circumstances import Circumstances

EVALUATION_FILE = "evaluation.json"
FORMAT_VERSION = 2


@dataclass(frozen=True)
class MetricLabel:
    """What a score is called and how it is written in tables, and in a card's metadata, where it may not go."""

    title: str
    text: str
    hub_name: str | None = None
    hub_type: str | None = None
    hub_digits: int = 4

    def format(self, value: float | None) -> str:
        """The cell of a value, which may be unknown."""
        return MISSING if value is None else format(value, self.text)


# A table has its columns in this order.
METRICS = {
    "bleu": MetricLabel("BLEU", ".2f", "BLEU", "sacrebleu", 2),
    "chrf": MetricLabel("chrF", ".2f", "chrF", "chrf", 2),
    "chrf++": MetricLabel("chrF++", ".2f", "chrF++", "chrf", 2),
    "ter": MetricLabel("TER", ".2f", "TER", "ter", 2),
    "comet": MetricLabel("COMET", ".4f", "COMET", "comet"),
    "accuracy": MetricLabel("accuracy", ".2%", "Accuracy", "accuracy"),
    "top5_accuracy": MetricLabel("top-5", ".2%"),
    "loss": MetricLabel("loss", ".3f", "Loss", "loss"),
}


@dataclass
class Score:
    """One score.

    Args:
        value: in the unit of its metric: BLEU and chrF 0 to 100, TER above 0, accuracies 0 to 1, loss in nats; None
            for one that was not finite.
        signature: how it was computed, as sacreBLEU writes it.
        details: parts of it, such as the precisions of BLEU.
    """

    value: float | None
    signature: str | None = None
    details: dict[str, Any] = field(default_factory=dict)


@dataclass
class ScoredData:
    """Which rows were scored.

    Args:
        split: name of the split, perhaps with a slice.
        source: Hub id, folder or file that they were read from.
        config: name of the configuration of a Hub data set.
        rows: how many.
        unit: what a row is, such as "sentences".
        checksum: SHA-256 of the rows in their order, as `checksum` gives it.
        source_lang, target_lang: languages of sentence pairs.
    """

    split: str
    source: str | list[str] | dict[str, str] | None = None
    config: str | None = None
    rows: int | None = None
    unit: str | None = None
    checksum: str | None = None
    source_lang: str | None = None
    target_lang: str | None = None


@dataclass
class Evaluation:
    """What a model scored.

    Args:
        task: name of its task.
        data: which rows.
        scores: name of `METRICS` → score.
        model: folder or Hub id.
        decoding: options of the search that wrote the outputs; empty where nothing was searched.
        seconds: of answering, without loading.
        attention: statistics of the attention on these rows.
        classes: of a classifier, class → images, recall, precision and what it was taken for.
        circumstances: where it was measured.
    """

    task: str
    data: ScoredData
    scores: dict[str, Score]
    model: str | None = None
    decoding: dict[str, Any] = field(default_factory=dict)
    seconds: float | None = None
    attention: AttentionReport | None = None
    classes: dict[str, dict[str, Any]] | None = None
    circumstances: Circumstances = field(default_factory=Circumstances)

    def cells(self) -> dict[str, str]:
        """Column → text of every score, in the order of `METRICS`."""
        known = {METRICS[name]: self.scores[name].value for name in METRICS if name in self.scores}
        return {metric.title: metric.format(value) for metric, value in known.items()}

    def signatures(self) -> dict[str, str]:
        """Title of a metric → how it was computed, as far as that is known."""
        return {METRICS[name].title: score.signature for name, score in self.scores.items() if score.signature}

    def differences(self, other: "Evaluation") -> dict[str, tuple[Any, Any]]:
        """Condition of the scores → what it is here and there, of those in which the two differ."""
        ours = _conditions(self)
        theirs = _conditions(other)
        if None in (ours["checksum"], theirs["checksum"]):  # One of the two files does not know it.
            theirs["checksum"] = ours["checksum"]
        return {name: (value, theirs[name]) for name, value in ours.items() if value != theirs[name]}

    def to_dict(self) -> dict[str, Any]:
        """The record as it is written in JSON."""
        return {
            "format_version": FORMAT_VERSION,
            **_known(vars(self)),
            "data": _known(asdict(self.data)),
            "scores": {name: _known(asdict(score)) for name, score in self.scores.items()},
            **({"attention": self.attention.to_dict()} if self.attention else {}),
            "circumstances": self.circumstances.to_dict(),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Evaluation":
        """Read a record; a key that is missing or not known is a KeyError or TypeError, as another format is."""
        parts = dict(values)
        if (version := parts.pop("format_version")) != FORMAT_VERSION:
            raise TypeError(f"format_version is {version!r}, not {FORMAT_VERSION}")
        parts["data"] = ScoredData(**values["data"])
        parts["scores"] = {name: Score(**score) for name, score in values["scores"].items()}
        parts["circumstances"] = Circumstances(**values.get("circumstances", {}))
        if values.get("attention") is not None:
            parts["attention"] = AttentionReport.from_dict(values["attention"])
        return cls(**parts)

    def save(self, path: str | Path) -> None:
        """Write the record; the file is complete or as it was."""
        write_json(path, self.to_dict())

    @classmethod
    def load(cls, path: str | Path) -> "Evaluation":
        """Read a record; raises a `ValueError` that names it where it is missing or no JSON."""
        return cls.from_dict(read_json(path))


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


class Checksum:
    """SHA-256 of rows of parts; each part counts with its length, so that no two data sets look alike."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()

    def add(self, *parts: bytes) -> None:
        """Add a row."""
        self._digest.update(b"".join(b"%d:" % len(part) + part for part in parts) + b"\n")

    def __str__(self) -> str:
        return f"sha256:{self._digest.hexdigest()}"


def checksum(rows: Iterable[Iterable[bytes]]) -> str:
    """Give the `Checksum` of rows."""
    result = Checksum()
    for row in rows:
        result.add(*row)
    return str(result)


def markdown_table(columns: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table in Markdown: titles of its columns, and the cells of each line."""
    rows = [columns, ["---"] * len(columns), *lines]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _conditions(evaluation: Evaluation) -> dict[str, Any]:
    """What two evaluations must share."""
    data = evaluation.data
    return {
        "task": evaluation.task,
        "data": source_name(data.source),
        "split": data.split,
        "rows": data.rows,
        "checksum": data.checksum,
        "source_lang": data.source_lang,
        "target_lang": data.target_lang,
        # The size of a batch counts too: its longest source bounds translations that do not end.
        "decoding": evaluation.decoding,
        "signature": evaluation.scores["bleu"].signature if "bleu" in evaluation.scores else None,
    }


def _known(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value not in (None, {})}
