"""The record of an evaluation: written and read, compared and put into cells."""

import json
from dataclasses import replace

import pytest

from builders.finished_runs import attention_statistics
from reluformers.evaluation.attention_report import AttentionReport
from reluformers.evaluation.circumstances import Circumstances
from reluformers.evaluation.results import Evaluation, Score, ScoredData, checksum


def make_evaluation(**changes) -> Evaluation:
    evaluation = Evaluation(
        task="translation",
        data=ScoredData("test", "data/test.jsonl", rows=1000, unit="sentences", checksum="sha256:1", source_lang="en"),
        scores={
            "chrf": Score(60.5, "chrF|x"),
            "bleu": Score(35.25, "BLEU|x", {"bp": 0.98, "precisions": [70.0, 40.0]}),
        },
        model="runs/a",
        decoding={"num_beams": 5, "early_stopping": False, "max_tokens": 4096},
        seconds=12.5,
        attention=AttentionReport.from_dict(attention_statistics(0.5, "encoder", "cross")),
        circumstances=Circumstances(device="cpu", seed=3, torch="2.13.0"),
    )
    return replace(evaluation, **changes)


def test_what_is_written_is_read(tmp_path):
    evaluation = make_evaluation()
    evaluation.save(tmp_path / "evaluation.json")
    assert Evaluation.load(tmp_path / "evaluation.json") == evaluation
    written = json.loads((tmp_path / "evaluation.json").read_text())
    assert written["format_version"] == 2
    # what is not known is not written
    assert "classes" not in written
    assert "config" not in written["data"]


@pytest.mark.parametrize("changes", [{"format_version": 3}, {"secnods": 5.0}, {"data": {"rows": 5}}])
def test_another_record_is_refused(changes):
    with pytest.raises(TypeError):
        Evaluation.from_dict({**make_evaluation().to_dict(), **changes})


def test_only_like_evaluations_are_compared():
    evaluation = make_evaluation()
    alike = make_evaluation(model="runs/b", seconds=1.0, scores={"bleu": Score(1.0, "BLEU|x")})
    assert not evaluation.differences(alike)
    elsewhere = replace(evaluation.data, source="/other/place/test.jsonl", checksum=None)
    assert not evaluation.differences(make_evaluation(data=elsewhere))
    smaller = {**evaluation.decoding, "max_tokens": 1}  # the longest source of a batch bounds its translations
    assert list(evaluation.differences(make_evaluation(decoding=smaller))) == ["decoding"]
    for name, other in {
        "checksum": {"data": replace(evaluation.data, checksum="sha256:2")},
        "split": {"data": replace(evaluation.data, split="test[:10]")},
        "decoding": {"decoding": {**evaluation.decoding, "num_beams": 1}},
        "signature": {"scores": {"bleu": Score(35.0, "BLEU|y")}},
        "task": {"task": "image-classification"},
    }.items():
        assert name in evaluation.differences(make_evaluation(**other))


def test_checksums_tell_rows_and_parts_apart():
    rows = [(b"ab", b"c"), (b"d", b"e")]
    assert checksum(rows) == checksum(list(rows))
    for other in ([(b"a", b"bc"), (b"d", b"e")], rows[::-1], rows[:1], [(b"ab", b"c"), (b"d", b"e", b"")]):
        assert checksum(other) != checksum(rows)
