"""What others wrote stands in a card as text: it makes no HTML, link, heading or cell, and changes no metadata."""

import json
import re
from pathlib import Path

import pytest
import yaml

from builders.finished_runs import recipe, translation_evaluation, translation_run
from reluformers.evaluation.results import Example
from reluformers.publish import card
from reluformers.publish.card import write_card
from reluformers.translation import card as translation_card

MarkdownIt = pytest.importorskip("markdown_it").MarkdownIt

HOSTILE = [
    "<script>alert(1)</script>",
    "<!-- the rest is gone",
    r"a \| b || c \\",
    "`code` ``` ~~~",
    "two\nlines\r\n\n# heading\n\n| a |\n|---|\n",
    "](http://evil.example) [x](http://evil.example) ![i](http://evil.example/i.png)",
    "---\nlicense: mit\n---",
    "{{ 7 * 7 }} {% raw %}",
    "'\"%@&*!: [a, b] {c: d}",
    "a\u2028b\x85c\x0bd\x00",
]
WORD = "word"


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch):
    """What is drawn has no text of others in it, and takes most of the time."""
    for plot in ("plot_attention_report", "plot_training_curves"):
        monkeypatch.setattr(card, plot, lambda _, path: path.write_bytes(b""))


def write_hostile_card(folder: Path, text: str, monkeypatch) -> Path:
    examples = [Example(f"{text}{number}", text, text, text) for number in range(2)]
    monkeypatch.setattr(translation_card, "held_out_examples", lambda *_: examples)
    run = translation_run(folder / "run")
    changed = recipe("reluformer")
    changed["data"]["train"] = text
    changed["training"] |= dict.fromkeys(("optim", "lr_scheduler_type", "metric_for_best_model", "seed"), text)
    changed["training"] |= {"load_best_model_at_end": True, "average_last": 0, text: 1}
    (run / "recipe.yaml").write_text(yaml.safe_dump(changed))
    results = json.loads((run / "results.json").read_text())
    (run / "results.json").write_text(
        json.dumps({**results, **dict.fromkeys(("torch", "transformers", "device"), text)})
    )
    evaluation = translation_evaluation(30.0, 0.5)
    evaluation["data"] |= {"split": text, "unit": text, "source": text, "source_lang": text}
    evaluation["scores"]["bleu"]["signature"] = text
    (run / "evaluation.json").write_text(json.dumps(evaluation))
    baseline = folder / "baseline"
    baseline.mkdir()
    (baseline / "evaluation.json").write_text(json.dumps(evaluation))
    said = dict.fromkeys(("data_name", "data_domain", "data_terms"), text)
    return write_card(run, "someone/name", notes=[text, text], **said, baseline=baseline / "evaluation.json")


def parts(path: Path) -> tuple[list[str], str]:
    """What Markdown the body is made of, without its words; and the metadata."""
    _, front, body = re.split("^---\n", path.read_bytes().decode(), maxsplit=2, flags=re.MULTILINE)
    tokens = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).parse(body)
    assert "\x00" not in body
    kinds = []
    for token in tokens:
        kinds.append(f"{token.type} {token.tag} {token.attrs}")
        # a piece of text may be several with escapes between them
        kinds += [
            f"{part.type} {part.attrs}" for part in token.children or () if part.type[:4] not in ("text", "code")
        ]
    return kinds, yaml.safe_load(front)


def replaced(value, text: str):
    """Metadata with one text for another."""
    if isinstance(value, dict):
        return {key: replaced(part, text) for key, part in value.items()}
    if isinstance(value, list):
        return [replaced(part, text) for part in value]
    return value.replace(WORD, text) if isinstance(value, str) else value


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_a_card_is_made_of_the_same_whatever_the_words(tmp_path, monkeypatch, text):
    kinds, metadata = parts(write_hostile_card(tmp_path / "known", WORD, monkeypatch))
    hostile_kinds, hostile_metadata = parts(write_hostile_card(tmp_path / "hostile", text, monkeypatch))
    assert hostile_kinds == kinds
    for data in (hostile_metadata, metadata):
        for result in data["model-index"]:
            for entry in result["results"]:
                entry.pop("dataset", None)  # file names are cut out of paths
        data.pop("language", None)  # which text it is not
    assert hostile_metadata == replaced(metadata, text)
