"""The quality of pairs by null attention: against a naive count, in every format."""

import gzip
import json
from itertools import count, islice

import pytest
import torch
from torch.nn import functional

from builders.commands import run_command
from builders.models import build_model
from builders.saved_models import TEXTS, save_translator
from reluformers.evaluation import alignments
from reluformers.translation.decoding import load_translation_model
from reluformers.translation.rows import read_rows
from reluformers.translation.tokenization import train_tokenizer
from reluformers_research.analysis.filtering import keep_best, score_pairs

PAIRS = [(TEXTS[0], TEXTS[2]), ("dogs", ""), (TEXTS[1], TEXTS[0]), ("", "Two"), (TEXTS[2], TEXTS[2])] * 2


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TEXTS, 120)


@pytest.fixture(scope="module")
def model(tokenizer):
    # a threshold that leaves about half of the rows without any weight
    attention = {"activation": "relu", "threshold": 1.0}
    sizes = {"vocab_size": len(tokenizer), "max_position_embeddings": 64}
    return build_model("relu", attention=attention, **sizes)


def naive_score(model, tokenizer, source: str, target: str) -> tuple[float, float]:
    """One pair without padding, one row at a time, in float64."""
    ids, labels = (torch.tensor([tokenizer(text)["input_ids"]]) for text in (source, target))
    with torch.no_grad():
        outputs = model(input_ids=ids, labels=labels, output_attentions=True)
    rows = [row for layer in outputs.cross_attentions for head in layer[0] for row in head]
    null_rate = sum(all(weight == 0 for weight in row.tolist()) for row in rows) / len(rows)
    return null_rate, functional.cross_entropy(outputs.logits[0].double(), labels[0]).item()


def test_scores_are_those_of_a_naive_count(model, tokenizer):
    scores = list(score_pairs(model, (tokenizer, tokenizer), PAIRS, max_tokens=100))
    expected = [naive_score(model, tokenizer, *pair) for pair in PAIRS]
    assert [score.null_rate for score in scores] == pytest.approx([null_rate for null_rate, _ in expected])
    assert [score.loss for score in scores] == pytest.approx([loss for _, loss in expected], rel=1e-4)
    assert 0.05 < min(null_rate for null_rate, _ in expected) < max(null_rate for null_rate, _ in expected) < 1


def test_memory_is_bounded_by_a_block(model, tokenizer, monkeypatch):
    """Read no more of an endless text than the block that the answer needs."""
    monkeypatch.setattr(alignments, "BLOCK_ROWS", 4)
    read = []
    endless = (read.append(number) or ("dogs", "Two") for number in count())
    scores = list(islice(score_pairs(model, (tokenizer, tokenizer), endless), 6))
    assert len(set(scores)) == 1
    assert len(read) == 8


def test_the_best_share_and_the_order():
    assert keep_best([0.5, 0.1, 0.5, 0.9, 0.1], 0.5).tolist() == [True, True, False, False, True]
    assert keep_best([0.5, 0.1], 1.0).all()
    assert keep_best([0.5, 0.1, 0.7], 0.01).tolist() == [False, True, False]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    attention = {"activation": "relu", "threshold": 0.2}
    return save_translator(tmp_path_factory.mktemp("model") / "model", attention=attention)


def write_data(folder, kind: str) -> list:
    rows = PAIRS[:5]
    if kind == "text":
        paths = [folder / "data.en", folder / "data.de.gz"]
        paths[0].write_text("".join(f"{source}\n" for source, _ in rows))
        with gzip.open(paths[1], "wt") as file:
            file.write("".join(f"{target}\n" for _, target in rows))
        return paths
    path = folder / f"data.{kind}"
    with gzip.open(path, "wt") if kind.endswith("gz") else path.open("w") as file:
        if kind == "tsv":
            file.write(
                "de\tid\ten\n" + "".join(f"{target}\t{n}\t{source}\n" for n, (source, target) in enumerate(rows))
            )
        else:
            for number, (source, target) in enumerate(rows):
                file.write(json.dumps({"translation": {"en": source, "de": target, "fr": "é"}, "id": number}) + "\n")
    return [path]


LANGUAGES = ("--source_lang", "en", "--target_lang", "de")


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "tsv", "text"])
def test_the_command_writes_what_it_read_and_a_score(folder, tmp_path, kind):
    data = write_data(tmp_path, kind)
    packed = ".gz" if kind.endswith("gz") else ""
    names = ["out.en", "out.de", "out.score"] if kind == "text" else [f"out.jsonl{packed}"]
    output = [tmp_path / name for name in names]
    run_command("filter", folder, *data, *LANGUAGES, "--score", "null_rate", "--output", *output)
    model, tokenizers = load_translation_model(folder)
    expected = [score.null_rate for score in score_pairs(model, tokenizers, PAIRS[:5])]
    assert max(expected) > 0
    if kind == "text":
        assert output[0].read_text() == data[0].read_text()
        assert output[1].read_bytes() == gzip.decompress(data[1].read_bytes())
        scores = list(map(float, output[2].read_text().splitlines()))
    else:
        opener = gzip.open if packed else open
        after = [json.loads(line) for line in opener(output[0], "rt")]
        scores = [row.pop("null_rate") for row in after]
        assert after == list(read_rows(str(data[0])))
    assert scores == pytest.approx(expected)


def test_the_command_ranks_and_keeps(folder, tmp_path):
    (data,) = write_data(tmp_path, "jsonl")
    output = tmp_path / "out.jsonl"

    def scores_of(*options) -> list[tuple[float, int]]:
        run_command("filter", folder, data, *LANGUAGES, "--output", output, *options)
        rows = [json.loads(line) for line in output.read_text().splitlines()]
        score = "null_rate" if "null_rate" in options else "loss"
        return [(row[score], row["id"]) for row in rows]

    everything = scores_of()
    assert everything == scores_of("--score", "loss")
    assert [number for _, number in everything] == list(range(5))
    assert scores_of("--score", "loss", "--rank") == sorted(everything)
    best = sorted(everything)[:2]
    assert scores_of("--score", "loss", "--rank", "--keep", "0.4") == best
    assert scores_of("--score", "loss", "--keep", "0.4") == sorted(best, key=lambda scored: scored[1])
    assert scores_of("--score", "loss", "--max_score", str(best[1][0]), "--rank") == best
    assert len(scores_of("--score", "null_rate", "--max_score", "1")) == 5
