"""The quality of pairs by null attention: against a naive count, resumed after a kill, in every format."""

import gzip
import json
import re
import shutil
import sys
from itertools import count, islice
from types import ModuleType

import pytest
import torch
from torch.nn import functional

from builders.commands import refusal_of, run_command
from builders.models import build_model
from builders.saved_models import TEXTS, save_translator
from reluformers.evaluation import cross_attention
from reluformers.translation.decoding import load_translation_model
from reluformers.translation.tokenization import train_tokenizer
from reluformers_research.analysis import filtering
from reluformers_research.analysis.filtering import ScoreFile, keep_best, score_pairs, sort_rows
from reluformers_research.analysis.parallel_text import ParallelRow, ParallelText, keys_for

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


def test_softmax_is_never_null(tokenizer):
    model = build_model("softmax", vocab_size=len(tokenizer), max_position_embeddings=64)
    assert not any(score.null_rate for score in score_pairs(model, (tokenizer, tokenizer), PAIRS))


def test_memory_is_bounded_by_a_block(model, tokenizer, monkeypatch):
    """Read no more of an endless text than the block that the answer needs."""
    monkeypatch.setattr(cross_attention, "BLOCK_ROWS", 4)
    read = []
    endless = (read.append(number) or ("dogs", "Two") for number in count())
    scores = list(islice(score_pairs(model, (tokenizer, tokenizer), endless), 6))
    assert len(set(scores)) == 1
    assert len(read) == 8


def test_the_best_share_and_the_order():
    assert keep_best([0.5, 0.1, 0.5, 0.9, 0.1], 0.5).tolist() == [True, True, False, False, True]
    assert keep_best([0.5, 0.1], 1.0).all()
    assert keep_best([0.5, 0.1, 0.7], 0.01).tolist() == [False, True, False]


def test_more_rows_than_a_block_are_sorted_on_disk(monkeypatch):
    monkeypatch.setattr(filtering, "_SORTED_ROWS", 7)
    scores = [0.5, 0.25, 0.5, 1 / 3, 0.0] * 6
    rows = [(ParallelRow("ä", f"{number}", {}, "line"), score) for number, score in enumerate(scores)]
    found = list(sort_rows(rows))
    assert [(row.target, score) for row, score in found] == [
        (row.target, score) for row, score in sorted(rows, key=lambda scored: scored[1])
    ]


def test_a_score_file_goes_on_behind_the_last_whole_line(tmp_path):
    path = tmp_path / "out.scores"
    assert list(ScoreFile(path, {"model": "a"}).append([0.5, 1 / 3])) == [0.5, 1 / 3]
    with path.open("a") as file:
        file.write("0.12")  # killed while writing
    scores = ScoreFile(path, {"model": "a"})
    assert scores.done == 2
    assert list(scores.append([0.25])) == [0.25]
    assert list(scores.read()) == [0.5, 1 / 3, 0.25]
    with pytest.raises(ValueError, match="scores of another model, data or option; remove it"):
        ScoreFile(path, {"model": "b"})


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
    names = ["out.en", "out.de", "out.score"] if kind == "text" else [f"out.{kind}"]
    output = [tmp_path / name for name in names]
    run_command("filter", folder, *data, *LANGUAGES, "--score", "null_rate", "--output", *output)
    model, tokenizers = load_translation_model(folder)
    expected = [score.null_rate for score in score_pairs(model, tokenizers, PAIRS[:5])]
    assert max(expected) > 0
    if kind == "text":
        assert output[0].read_text() == data[0].read_text()
        assert output[1].read_bytes() == gzip.decompress(data[1].read_bytes())
        scores = list(map(float, output[2].read_text().splitlines()))
    elif kind == "tsv":
        lines = output[0].read_text().splitlines()
        assert lines[0] == "de\tid\ten\tnull_rate"
        assert [line.rpartition("\t")[0] for line in lines[1:]] == data[0].read_text().splitlines()[1:]
        scores = [float(line.rpartition("\t")[2]) for line in lines[1:]]
    else:
        opener = gzip.open if kind.endswith("gz") else open
        before, after = ([json.loads(line) for line in opener(path, "rt")] for path in (data[0], output[0]))
        scores = [row.pop("null_rate") for row in after]
        assert after == before
    assert scores == pytest.approx(expected)
    assert not (tmp_path / f"{names[0]}.scores").exists()


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "tsv"])
def test_keys_are_the_languages_of_the_model(folder, tmp_path, kind):
    (data,) = write_data(tmp_path, kind)
    model = shutil.copytree(folder, tmp_path / "model")
    assert keys_for(model, str(data), None, None) == ("source", "target")
    (model / "recipe.yaml").write_text("data: {source_lang: de, target_lang: en}\n")
    assert keys_for(model, str(data), None, None) == ("de", "en")
    assert keys_for(model, f"{data}[:1]", None, "fr") == ("de", "fr")
    (model / "recipe.yaml").write_text("data: {source_lang: ro, target_lang: en}\n")
    assert keys_for(model, str(data), None, None) == ("source", "target")


def test_commands_take_the_languages_of_the_model(folder, tmp_path, capsys):
    (data,) = write_data(tmp_path, "jsonl")
    model = shutil.copytree(folder, tmp_path / "model")
    (model / "recipe.yaml").write_text("data: {source_lang: en, target_lang: de}\n")
    outputs = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    run_command("filter", model, data, "--output", outputs[0])
    run_command("filter", model, data, *LANGUAGES, "--output", outputs[1])
    assert outputs[0].read_text() == outputs[1].read_text()
    run_command("align", model, data)
    assert len(capsys.readouterr().out.splitlines()) == 5 + 2


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


def test_a_killed_call_goes_on(folder, tmp_path, monkeypatch):
    (data,) = write_data(tmp_path, "jsonl")
    output, reference = tmp_path / "out.jsonl", tmp_path / "reference.jsonl"
    run_command("filter", folder, data, *LANGUAGES, "--output", reference)
    monkeypatch.setattr(cross_attention, "BLOCK_ROWS", 2)
    run, calls = cross_attention._run, []

    def killed(model, pad, texts, *tokens):
        calls.append(texts)
        if len(calls) == 3:
            raise MemoryError
        return run(model, pad, texts, *tokens)

    monkeypatch.setattr(cross_attention, "_run", killed)
    with pytest.raises(MemoryError):
        run_command("filter", folder, data, *LANGUAGES, "--output", output, "--max_tokens", "1000")
    assert not output.exists()
    assert len((tmp_path / "out.jsonl.scores").read_text().splitlines()) == 1 + 4
    calls += [None]
    run_command("filter", folder, data, *LANGUAGES, "--output", output, "--max_tokens", "1000")
    assert calls[4:] == [[PAIRS[4]]]
    assert output.read_text() == reference.read_text()


def test_a_model_that_is_never_null_is_named(tmp_path, caplog):
    folder = save_translator(tmp_path / "model", cross_attention="softmax")
    (data,) = write_data(tmp_path, "jsonl")
    run_command("filter", folder, data, *LANGUAGES, "--score", "null_rate", "--output", tmp_path / "out.jsonl")
    assert "never attends to nothing; use --score loss" in caplog.text


def test_what_the_command_refuses(folder, tmp_path, capsys):
    (data,) = write_data(tmp_path, "jsonl")
    table, texts = write_data(tmp_path, "tsv"), write_data(tmp_path, "text")
    out = tmp_path / "out.jsonl"

    def refused(*arguments) -> str:
        line = refusal_of(capsys, "filter", folder, *arguments)
        assert not out.exists()
        assert not (tmp_path / "out.jsonl.scores").exists()
        return line

    assert "must be one .jsonl or .jsonl.gz" in refused(data, "--output", tmp_path / "out.tsv")
    assert "need three, source, target and score" in refused(*texts, "--output", out)
    assert "keep must be a share above 0 and at most 1, got 1.5" in refused(data, "--output", out, "--keep", "1.5")
    assert "max_tokens must be at least 1" in refused(data, "--output", out, "--max_tokens", "0")
    assert "must be .jsonl or .tsv" in refused(tmp_path / "data.csv", "--output", out)
    assert "no such file" in refused(tmp_path / "none.jsonl", "--output", out)
    assert "max_score is nan" in refused(data, "--output", out, "--max_score", "nan")
    assert "is read by the same command" in refused(data, "--output", data)
    # which holds the scores on the way
    assert "out.jsonl.scores: is to hold two kinds" in refused(*texts, "--output", out, "b", f"{out}.scores")
    # and leaves nothing that would keep the right call from its work
    assert "row 1: 'source' holds no sentence; found 'en', 'de', 'fr'" in refused(data, "--output", out)
    line = refusal_of(capsys, "filter", folder, *table, "--output", tmp_path / "out.tsv")
    assert "'source'" in line


def test_faults_of_files_are_named_by_line(tmp_path):
    def fault(*names) -> str:
        with pytest.raises(ValueError) as caught:
            list(ParallelText([str(tmp_path / name) for name in names]))
        return str(caught.value)

    (tmp_path / "a.jsonl").write_text('{"source": "a", "target": "b"}\n{"source": \n')
    assert "a.jsonl, line 2, character" in fault("a.jsonl")
    (tmp_path / "b.jsonl").write_text('["a", "b"]\n')
    assert "b.jsonl, row 1" in fault("b.jsonl")
    (tmp_path / "c.tsv").write_text("source\ttarget\na\n")
    assert "c.tsv, line 2" in fault("c.tsv")
    (tmp_path / "e.jsonl").write_text('{"source": "a \\ud83d", "target": "b"}\n')
    assert "row 1: 'source' holds half of a surrogate pair at character 3" in fault("e.jsonl")
    for name, lines in (("d.en", "a\nb\n"), ("d.de", "c\n")):
        (tmp_path / name).write_text(lines)
    assert re.search(r"d\.de has 1 lines, but .*d\.en has 2;", fault("d.en", "d.de"))
    assert "3 data files" in fault("d.en", "d.de", "c.tsv")
    assert "give one file of rows, or two of plain text" in fault("a.jsonl", "b.jsonl")
    assert "give one file of rows, or two of plain text" in fault("d.en", "c.tsv")


def test_slices_and_counts(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f'{{"source": "{number}", "target": "x"}}\n\n' for number in range(5)))
    for name, expected in (("", "01234"), ("[1:3]", "12"), ("[3:]", "34"), ("[:2]", "01"), ("[9:]", "")):
        text = ParallelText([f"{path}{name}"])
        assert "".join(row.source for row in text) == expected
        assert text.count() == len(expected)


def opusfilter_stub() -> ModuleType:
    """What OpusFilter 3.3 asks of a filter: its abstract class in a few lines."""
    module = ModuleType("opusfilter")

    class FilterABC:
        def __init__(self, name=None, workdir="", **kwargs):
            assert not kwargs
            self.name, self.workdir = name, workdir

        def decisions(self, pairs):
            for score in self.score(pairs):
                yield self.accept(score)

    module.FilterABC, module.CLEAN_LOW = FilterABC, "clean_low"
    return module


def test_a_filter_of_opusfilter(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "opusfilter", opusfilter_stub())
    monkeypatch.delitem(sys.modules, "reluformers_research.analysis.opus_filter", raising=False)
    from reluformers_research.analysis.opus_filter import NullAttentionFilter

    scores = [score.null_rate for score in score_pairs(*load_translation_model(folder), PAIRS[:5])]
    threshold = sorted(scores)[2]
    chosen = NullAttentionFilter(model=str(folder), threshold=threshold, name="null", workdir="here")
    assert (chosen.score_direction, chosen.name) == ("clean_low", "null")
    rows = [list(pair) for pair in PAIRS[:5]]
    assert list(chosen.score(iter(rows))) == pytest.approx(scores)
    kept = [row for row, score in zip(rows, scores, strict=True) if score <= threshold]
    assert list(chosen.filter(iter(rows))) == kept
    assert list(chosen.filterfalse(iter(rows))) == [row for row in rows if row not in kept]
    for bound in ("accept_threshold", "reject_threshold"):
        chosen.threshold = getattr(chosen, bound)
        assert len(list(chosen.filter(rows))) == (5 if bound == "accept_threshold" else 0)
    with pytest.raises(ValueError, match="score is 'bleu', but must be one of null_rate, loss"):
        NullAttentionFilter(model=str(folder), threshold=0.5, score="bleu")
