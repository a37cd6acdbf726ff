"""Records of runs, and the tables and verdicts that follow from them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from reluformers.evaluation.attention_report import AttentionReport, AttentionSummary
from reluformers.evaluation.circumstances import Circumstances
from reluformers.evaluation.results import Evaluation, Score, ScoredData
from reluformers_research.causal.scoring import UNITS
from reluformers_research.evidence import Evidence
from reluformers_research.records import LOSS, RunRecord, gather, has_record, load_records
from reluformers_research.report import (
    AT_ONE_RATE,
    DIFFERS,
    HOLDS,
    NOT_THERE,
    OPEN,
    REVERSED,
    TableReport,
    _verdicts,
)
from reluformers_research.statistics import Difference
from reluformers_research.tables import Claim, Table, public_sections, run_name

BASE = """task: image-classification
model: {image_size: 8, patch_size: 4, hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 2}
data: {train: a.parquet, test: c.parquet}
"""
TABLE = """
title: a table
margin: 0.02
baseline: one
settings:
  small: {recipe: base.yaml, note: tiny}
rows:
  one: {paper: 0.7, model: {preset: softmax}}
  two: {model: {preset: relu}}
  three: {model: {preset: rela}}
claims:
  - one < two
  - two > three
  - three >= one
  - three ~ one
  - "zeros: two > one"
"""
ROWS = 2000


def load_table(folder: Path, text: str = TABLE) -> Table:
    (folder / "base.yaml").write_text(BASE)
    (folder / "t.yaml").write_text(text)
    return Table.load(str(folder / "t.yaml"))


@pytest.fixture
def table(tmp_path, monkeypatch):
    monkeypatch.setattr("reluformers_research.records.list_tables", list)  # whose recipes take seconds to read
    return load_table(tmp_path)


def save_run(table, folder: Path, name: str, seed: int, share: float, *, loss=None, zeros=0.0, diverged=None):
    """A record of a run that was right in a share of the rows, and had a loss of 2 − that share, about."""
    recipe = table.recipe("small", table.rows[name], seed)
    hits = np.random.default_rng(seed + 100 * len(name)).random(ROWS) < share
    rows = np.stack([hits, np.ones(ROWS)], 1).astype(np.int64)
    whole = AttentionSummary(zeros, 0.0, 1.0, 1.0, 10)
    evaluation = Evaluation(
        task=recipe.task,
        data=ScoredData(split="test", source="c.parquet", rows=ROWS, unit="images", checksum="1"),
        scores={"accuracy": Score(float(hits.mean()))},
        attention=AttentionReport({}, whole),
        circumstances=Circumstances(torch="2", transformers="5", processor="a processor", commit="abc"),
    )
    record = RunRecord(
        name=run_name(recipe),
        recipe=public_sections(recipe),
        evaluation=None if diverged else evaluation,
        diverged=diverged,
        results={} if diverged else {"validation_loss": 2 - hits.mean() if loss is None else loss},
        data={"train": {"name": "a.parquet", "sha256": ["1"]}},
        counts={} if diverged else {"accuracy": rows},
    )
    record.save(folder)
    return record


def load_record(folder: Path, name: str) -> RunRecord:
    return next(record for record in load_records(folder) if record.name == name)


def report_of(table, folder, **options):
    return TableReport(table, "small", Evidence.load(folder), **options)


def verdicts(report, measure="accuracy"):
    """By one measure, of a statistic by itself."""
    return {
        claim.text: by_measure[measure if measure in by_measure else claim.measure].verdict
        for claim, by_measure in report.verdicts.items()
    }


def test_a_record_comes_back_as_it_was(table, tmp_path):
    record = save_run(table, tmp_path, "one", 3, 0.8)
    again = load_record(tmp_path, record.name)
    assert again == record
    assert again.seed == 3
    assert again.counts["accuracy"][:, 0].mean() == pytest.approx(again.score)
    counts = [[300, 70_000], [0, 1]]  # more than a byte or two hold
    replace(record, counts={"accuracy": np.array(counts)}).save(tmp_path)
    assert load_record(tmp_path, record.name).counts["accuracy"].tolist() == counts


def test_gathered_records_are_those_that_were_written(table, tmp_path):
    files, folder = tmp_path / "files", tmp_path / "gathered"
    for seed in (1, 2):
        record = save_run(table, files, "one", seed, 1 / 3)
    replace(record, name="words-1", translations=["Ein Hund.", "", "ä\x0bé"]).save(files)
    save_run(table, files, "two", 1, 0.8, diverged="nan")
    assert gather(files, folder) == 4
    assert [path.name for path in folder.iterdir()] == ["image_classification-00000.parquet"]
    one_by_one, gathered = load_records(files), load_records(folder)
    assert gathered == one_by_one
    for first, second in zip(one_by_one, gathered, strict=True):
        assert first.counts.keys() == second.counts.keys()
        for metric, rows in first.counts.items():
            assert np.array_equal(rows, second.counts[metric])
    assert load_record(folder, "words-1").translations == ["Ein Hund.", "", "ä é"]
    assert has_record(folder, "words-1")
    assert not has_record(folder, "words-2")


def test_many_runs_are_several_files(table, tmp_path, monkeypatch):
    for seed in (1, 2, 3):
        save_run(table, tmp_path / "files", "one", seed, 0.5)
    monkeypatch.setattr("reluformers_research.records._SHARD_BYTES", 30_000)
    gather(tmp_path / "files", tmp_path / "gathered")
    assert len(list((tmp_path / "gathered").iterdir())) > 1
    for folder in ("gathered", "files"):  # beside those that are gathered
        save_run(table, tmp_path / folder, "one", 4, 0.5)
    gather(tmp_path / "gathered", tmp_path / "gathered")
    assert load_records(tmp_path / "gathered") == load_records(tmp_path / "files")


def test_a_full_disk_loses_no_gathered_run(table, tmp_path, monkeypatch):
    monkeypatch.setattr("reluformers_research.records._SHARD_BYTES", 80_000)
    for name in ("z1", "z2", "z3", "z4"):
        replace(save_run(table, tmp_path / "runs", "one", 1, 0.5), name=name).save(tmp_path / "first")
    gather(tmp_path / "first", tmp_path / "gathered")
    for name in ("a1", "a2"):  # They move others into the second file.
        replace(load_records(tmp_path / "runs")[0], name=name).save(tmp_path / "second")
    before = {record.name for record in load_records(tmp_path / "gathered")}

    def write(table, path, **options):
        if "00001" in path.name:
            raise OSError("No space")
        write_table(table, path, **options)

    write_table = pq.write_table
    monkeypatch.setattr(pq, "write_table", write)
    with pytest.raises(OSError, match="No space"):
        gather(tmp_path / "second", tmp_path / "gathered")
    assert before <= {record.name for record in load_records(tmp_path / "gathered")}


def test_two_runs_of_a_name_are_refused(table, tmp_path):
    record = save_run(table, tmp_path / "a", "one", 1, 0.5)
    gather(tmp_path / "a", tmp_path / "b")
    before = {path.name: path.read_bytes() for path in (tmp_path / "b").iterdir()}
    changed = replace(record, counts={"accuracy": record.counts["accuracy"][::-1]})
    changed.save(tmp_path / "a")
    with pytest.raises(ValueError, match=record.name):
        gather(tmp_path / "a", tmp_path / "b")
    assert {path.name: path.read_bytes() for path in (tmp_path / "b").iterdir()} == before
    changed.save(tmp_path / "b")
    with pytest.raises(ValueError, match=record.name):
        load_records(tmp_path / "b")


def test_the_loss_decides(table, tmp_path):
    """It is better where it is lower; its margin is what goes with that of the accuracy, here 0.02 / 0.36."""
    for seed in (1, 2, 3):
        for name, loss in (("one", 2.0), ("two", 1.9), ("three", 2.0)):
            save_run(table, tmp_path, name, seed, 0.5, loss=loss + seed / 100 + (len(name) * seed) % 4 / 500)
    texts = ("one < two", "two < one", "three ~ one", "one ~ two", "three > one", "three >= one", "one >= two")
    report = report_of(replace(table, claims=[Claim.parse(text) for text in texts]), tmp_path)
    expected = [AT_ONE_RATE, REVERSED, AT_ONE_RATE, DIFFERS, NOT_THERE, AT_ONE_RATE, REVERSED]
    assert verdicts(report, LOSS) == dict(zip(texts, expected, strict=True))
    assert "| one < two | **holds at one rate** +0.100 [" in report.markdown()
    assert "- zeros 0.0%, null rows 0.0%, entropy 1.00 and row sum 1.00 in all rows.\n" in report.markdown()


def test_rows_of_other_schedules_are_not_compared(table, tmp_path):
    table = load_table(tmp_path, TABLE.replace("two: {", "two: {training: {num_train_epochs: 7}, "))
    for seed in (1, 2):
        for name in ("one", "two"):
            save_run(table, tmp_path, name, seed, 0.5)
    report = report_of(table, tmp_path)
    assert report.verdicts[Claim.parse("one < two")] == {}
    assert "Too few comparable runs to judge: `one < two`, " in report.markdown()


def test_a_row_of_failed_runs_is_judged_by_ranks(table, tmp_path):
    shift = {seed: (3 * seed) % 5 / 100 for seed in range(1, 6)}
    for seed in range(1, 6):
        save_run(table, tmp_path, "one", seed, 0.5, loss=2.0 + shift[seed])
        save_run(table, tmp_path, "two", seed, 0.5, loss=1.9 + shift[seed] + (2 * seed) % 5 / 1000)
        save_run(table, tmp_path, "three", seed, 0.5, loss=2.1 if seed == 2 else 4.0 + shift[seed])
    report = report_of(replace(table, claims=[Claim.parse("three < one")]), tmp_path)
    verdict = report.verdicts[Claim.parse("three < one")][LOSS]
    assert verdict.verdict == AT_ONE_RATE
    assert verdict.difference.chance_below(0) == pytest.approx(1 / 252)
    assert isinstance(report.difference("one", "two"), Difference)


def test_a_damaged_record_is_named(table, tmp_path):
    record = save_run(table, tmp_path, "one", 1, 0.8)
    path = tmp_path / f"{record.name}.parquet"
    whole = pq.read_table(path)
    for changes, message in (
        ({"accuracy_counts": None}, "lacks the counts of accuracy"),
        ({"format_version": 99}, "is a record of a newer"),
    ):
        pq.write_table(pa.Table.from_pylist([{**whole.to_pylist()[0], **changes}], whole.schema), path)
        with pytest.raises(ValueError, match=f"{record.name}: {message}"):
            Evidence.load(tmp_path)


@pytest.mark.parametrize(
    ("part", "change", "message"),
    [
        (lambda record: vars(record.evaluation.data), {"checksum": "2"}, "different test sets"),
        (lambda record: record.data["train"], {"sha256": ["b"]}, "different files"),
        (lambda record: vars(record.evaluation.scores["accuracy"]), {"signature": "tok:none"}, "signatures"),
    ],
)
def test_runs_of_other_data_or_another_scoring_are_not_compared(table, tmp_path, part, change, message):
    save_run(table, tmp_path, "one", 1, 0.5)
    record = save_run(table, tmp_path, "one", 2, 0.5)
    part(record).update(change)
    record.save(tmp_path)
    with pytest.raises(ValueError, match=message):
        report_of(table, tmp_path)


def test_a_seed_does_not_count_twice(table, tmp_path):
    record = save_run(table, tmp_path, "one", 1, 0.5)
    replace(record, name="another-1").save(tmp_path)
    with pytest.raises(ValueError, match=r"are both the run of .*, row one, with seed 1"):
        report_of(table, tmp_path)


@pytest.mark.parametrize(
    ("relation", "value", "verdict"),
    [
        (">", 0.004, HOLDS),
        (">", -0.004, REVERSED),
        (">=", -0.015, HOLDS),
        (">=", -0.03, REVERSED),
        ("~", 0.015, HOLDS),
        ("~", -0.03, DIFFERS),
        ("~", 0.03, DIFFERS),
    ],
)
def test_a_claim_is_contradicted_beyond_its_margin_alone(relation, value, verdict):
    """With a margin of 0.02 and little doubt about the difference."""
    assert _verdicts([(relation, Difference(value, 5e-4, 20), 0.02)]) == [verdict]
    assert _verdicts([(relation, Difference(value, 1.0, 20), 0.02)]) == [OPEN]


def test_what_is_tested_often_is_corrected_for():
    """A p-value of 0.02 is 0.08 of the first of four claims."""
    claim = (">", Difference(2.2, 1.0, 20), 0.02)
    assert _verdicts([claim]) == [HOLDS]
    assert _verdicts([claim] * 4) == [OPEN] * 4


def save_losses(table, folder, name, seed, loss, rows=None):
    """A record with a loss, and its parts by row where they were kept."""
    record = save_run(table, folder, name, seed, 0.5, loss=loss)
    if rows is not None:
        nats = np.round(UNITS * (rows + loss - rows.mean())).astype(np.int64)
        record.counts[LOSS] = np.stack([nats, np.ones_like(nats)], 1)
        record.save(folder)


def test_the_interval_of_the_loss_has_the_part_of_its_rows(table, tmp_path):
    """Two rows whose losses go apart by row: the variance of the difference of two means of 400 is 2 · 3² / 400."""
    random = np.random.default_rng(0)
    parts = {name: 30 + random.normal(0, 3, 400) for name in ("one", "two")}
    for seed in (1, 2, 3):
        for name, loss in (("one", 30.0), ("two", 29.0)):
            loss += (seed * len(name) * 7) % 5 / 100 + seed / 50 * (name == "one")
            save_losses(table, tmp_path / "seeds", name, seed, loss)
            save_losses(table, tmp_path / "rows", name, seed, loss, parts[name])
    gather(tmp_path / "rows", tmp_path / "gathered")
    alone = report_of(table, tmp_path / "seeds")
    both = report_of(table, tmp_path / "gathered")
    narrow, wider = (report.difference("two", "one") for report in (alone, both))
    assert narrow.value == pytest.approx(wider.value)
    spread = (parts["one"] - parts["two"]).std()
    assert wider.error**2 - narrow.error**2 == pytest.approx(spread**2 / 400, rel=0.1)
    assert not alone.evidence.has_rows(alone.runs["one"].key, alone.runs["two"].key, LOSS)
