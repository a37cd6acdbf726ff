"""Records of runs, and the tables and verdicts that follow from them."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from reluformers.evaluation.attention_statistics import AttentionReport, AttentionStatistics
from reluformers.evaluation.circumstances import Circumstances
from reluformers.evaluation.results import Evaluation, Score, ScoredData
from reluformers_research.evidence import LOSS, Evidence
from reluformers_research.forest import plot_claims
from reluformers_research.page import claims_table, replace_claims, replace_tables, tables_in
from reluformers_research.records import RunRecord, gather, has_record, load_records
from reluformers_research.report import _FAILS, DIFFERS, HOLDS, OPEN, REVERSED, TOO_SMALL, TableReport, _chances
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


@pytest.fixture
def table(tmp_path):
    (tmp_path / "base.yaml").write_text(BASE)
    (tmp_path / "t.yaml").write_text(TABLE)
    return Table.load(str(tmp_path / "t.yaml"))


def save_run(
    table,
    folder: Path,
    name: str,
    seed: int,
    share: float,
    *,
    loss=None,
    zeros=0.0,
    diverged=None,
    checksum="1",
    train="1",
):
    """A record of a run that was right in a share of the rows, and had a loss of 2 − that share, about."""
    recipe = table.recipe("small", table.rows[name], seed)
    hits = np.random.default_rng(seed + 100 * len(name)).random(ROWS) < share
    rows = np.stack([hits, np.ones(ROWS)], 1).astype(np.int64)
    whole = AttentionStatistics(zeros, 0.0, 1.0, 1.0, 10)
    evaluation = Evaluation(
        task=recipe.task,
        data=ScoredData(split="test", source="c.parquet", rows=ROWS, unit="images", checksum=checksum),
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
        data={"train": {"name": "a.parquet", "sha256": [train]}},
        counts={} if diverged else {"accuracy": rows},
    )
    record.save(folder)
    return record


def report_of(table, folder, **options):
    return TableReport.of_records(table, "small", Evidence.load(folder), **options)


def verdicts(report, measure="accuracy"):
    """By one measure, of a statistic by itself."""
    return {
        claim.text: found[measure if measure in found else claim.measure].verdict
        for claim, found in report.verdicts.items()
    }


def test_a_record_comes_back_as_it_was(table, tmp_path):
    record = save_run(table, tmp_path, "one", 3, 0.8)
    again = RunRecord.load(tmp_path / f"{record.name}.json")
    assert again == record
    assert again.seed == 3
    rows = again.counts["accuracy"]
    assert rows.dtype == np.int64
    assert rows[:, 0].mean() == pytest.approx(again.score)
    counts = [[300, 70_000], [0, 1]]  # more than a byte or two hold
    replace(record, counts={"accuracy": np.array(counts)}).save(tmp_path)
    assert RunRecord.load(tmp_path / record.name).counts["accuracy"].tolist() == counts


def read_gathered(folder) -> list[dict]:
    return [row for path in sorted(folder.glob("*.parquet")) for row in pq.read_table(path).to_pylist()]


def test_gathered_records_are_those_that_were_written(table, tmp_path):
    files, folder = tmp_path / "files", tmp_path / "gathered"
    for seed in (1, 2):
        record = save_run(table, files, "one", seed, 1 / 3)
    replace(record, name="words-1", translations=["Ein Hund.", "", "ä\x0bé"]).save(files)
    save_run(table, files, "two", 1, 0.8, diverged="nan")
    values = {path.stem: json.loads(path.read_text()) for path in files.glob("*.json")}
    assert gather(files, folder) == 4
    assert not list(folder.glob("*.json"))
    for row in read_gathered(folder):
        own = values[row["name"]]
        for name in ("recipe", "evaluation", "data"):
            assert json.loads(row[name] or "null") == own.get(name)
        assert row["accuracy"] == (own["evaluation"]["scores"]["accuracy"]["value"] if "evaluation" in own else None)
    one_by_one, gathered = load_records(files), load_records(folder)
    assert gathered == one_by_one
    for first, second in zip(one_by_one, gathered, strict=True):
        assert first.counts.keys() == second.counts.keys()
        for metric, rows in first.counts.items():
            assert np.array_equal(rows, second.counts[metric])
            assert rows.dtype == second.counts[metric].dtype
    assert RunRecord.load(folder / "words-1").translations == ["Ein Hund.", "", "ä é"]
    assert has_record(folder, "words-1")
    assert not has_record(folder, "words-2")


def test_the_same_runs_are_the_same_bytes(table, tmp_path):
    save_run(table, tmp_path / "a", "one", 1, 0.5)
    save_run(table, tmp_path / "b", "one", 2, 0.5)
    for order in ("ab", "ba"):
        for name in order:
            gather(tmp_path / name, tmp_path / order)
    gather(tmp_path / "ab", tmp_path / "ab")
    first, second = [{path.name: path.read_bytes() for path in (tmp_path / order).iterdir()} for order in ("ab", "ba")]
    assert list(first) == ["image_classification-00000.parquet"]
    assert first == second


def test_many_runs_are_several_files(table, tmp_path, monkeypatch):
    for seed in (1, 2, 3):
        save_run(table, tmp_path / "files", "one", seed, 0.5)
    monkeypatch.setattr("reluformers_research.records._SHARD_BYTES", 30_000)
    gather(tmp_path / "files", tmp_path / "gathered")
    assert len(list((tmp_path / "gathered").iterdir())) > 1
    assert load_records(tmp_path / "gathered") == load_records(tmp_path / "files")
    monkeypatch.undo()
    gather(tmp_path / "gathered", tmp_path / "gathered")
    assert [path.name for path in (tmp_path / "gathered").iterdir()] == ["image_classification-00000.parquet"]
    assert load_records(tmp_path / "gathered") == load_records(tmp_path / "files")


@pytest.mark.parametrize("change", ["json", "counts", "translations"])
def test_two_runs_of_a_name_are_refused(table, tmp_path, change):
    record = save_run(table, tmp_path / "a", "one", 1, 0.5)
    gather(tmp_path / "a", tmp_path / "b")
    before = {path.name: path.read_bytes() for path in (tmp_path / "b").iterdir()}
    changed = {
        "json": {"seconds": 3.0},
        "counts": {"counts": {"accuracy": record.counts["accuracy"][::-1]}},
        "translations": {"translations": ["x"]},
    }
    replace(record, **changed[change]).save(tmp_path / "a")
    with pytest.raises(ValueError, match=record.name):
        gather(tmp_path / "a", tmp_path / "b")
    assert {path.name: path.read_bytes() for path in (tmp_path / "b").iterdir()} == before
    replace(record, **changed[change]).save(tmp_path / "b")
    with pytest.raises(ValueError, match=record.name):
        load_records(tmp_path / "b")


def test_a_run_is_gathered_under_its_name(table, tmp_path):
    record = save_run(table, tmp_path, "one", 1, 0.5)
    for path in list(tmp_path.glob(f"{record.name}.*")):
        path.rename(tmp_path / f"other-1{path.suffix}")
    with pytest.raises(ValueError, match=record.name):
        gather(tmp_path, tmp_path / "gathered")


def test_gathered_runs_and_new_ones_are_one_table(table, tmp_path):
    save_run(table, tmp_path / "files", "one", 1, 0.5)
    gather(tmp_path / "files", tmp_path)
    save_run(table, tmp_path, "one", 2, 0.5)
    assert [record.seed for record in report_of(table, tmp_path).runs["one"].records] == [1, 2]
    assert gather(tmp_path, tmp_path) == 2
    assert [record.seed for record in report_of(table, tmp_path).runs["one"].records] == [1, 2]


def test_other_parquet_files_are_refused(table, tmp_path):
    save_run(table, tmp_path / "files", "one", 1, 0.5)
    gather(tmp_path / "files", tmp_path)
    (path,) = tmp_path.glob("*.parquet")
    rows = pq.read_table(path)
    for damaged in (
        rows.append_column("more", rows["seed"]),
        rows.drop_columns("recipe"),
        rows.drop_columns("format_version"),
    ):
        pq.write_table(damaged, path)
        with pytest.raises(ValueError, match=path.name):
            load_records(tmp_path)
    path.write_bytes(b"PAR1")
    with pytest.raises(ValueError, match=path.name):
        load_records(tmp_path)
    with pytest.raises(ValueError, match=r"nowhere.json: no such file, and no record of that name"):
        RunRecord.load(tmp_path / "nowhere")


def test_translations_are_kept_line_by_line(table, tmp_path):
    import gzip

    record = save_run(table, tmp_path, "one", 1, 0.8)
    record.translations = ["Ein Hund.", "zwei\nZeilen"]
    record.save(tmp_path)
    first = (tmp_path / f"{record.name}.txt.gz").read_bytes()
    assert gzip.decompress(first).decode().splitlines() == ["Ein Hund.", "zwei Zeilen"]
    record.save(tmp_path)
    assert (tmp_path / f"{record.name}.txt.gz").read_bytes() == first


def test_the_loss_decides(table, tmp_path):
    """It is better where it is lower; its margin is a hundredth of the second row's, here 0.02."""
    for seed in (1, 2, 3):
        for name, loss in (("one", 2.0), ("two", 1.9), ("three", 2.0)):
            save_run(table, tmp_path, name, seed, 0.5, loss=loss + seed / 100 + (len(name) * seed) % 4 / 500)
    texts = ("one < two", "two < one", "three ~ one", "one ~ two", "three > one", "three >= one", "one >= two")
    report = report_of(replace(table, claims=[Claim.parse(text) for text in texts]), tmp_path)
    expected = [HOLDS, REVERSED, HOLDS, DIFFERS, TOO_SMALL, HOLDS, REVERSED]
    assert verdicts(report, LOSS) == dict(zip(texts, expected, strict=True))
    assert report.verdicts[Claim.parse("one < two")][LOSS].margin == pytest.approx(0.0203, abs=1e-4)
    text = report.markdown()
    assert "| claim | dev loss | accuracy |" in text
    report.task = replace(report.task, main_metric=LOSS)
    assert report._margin(Claim.parse("one < two"), LOSS) == 0.02
    assert "| two | – | 3 | 1.92" in text
    assert "| one < two | **holds** +0.100 [" in text
    assert "| ✗ reversed | −0.100 [" in claims_table([report])


def test_two_rows_have_one_difference_in_every_table(table, tmp_path):
    for seed in (1, 2, 3):
        for name, loss in (("one", 2.0), ("two", 1.9), ("three", 2.2)):
            save_run(table, tmp_path, name, seed, 0.5, loss=loss + (7 * seed * len(name)) % 5 / 100)
    whole = report_of(table, tmp_path)
    alone = report_of(table, tmp_path, rows=["one", "two"])
    assert whole.difference("one", "two") == alone.difference("one", "two")


def test_rows_of_other_schedules_are_not_compared(table, tmp_path):
    text = (tmp_path / "t.yaml").read_text().replace("two: {", "two: {training: {num_train_epochs: 7}, ")
    (tmp_path / "t.yaml").write_text(text)
    table = Table.load(str(tmp_path / "t.yaml"))
    for seed in (1, 2):
        for name in ("one", "two"):
            save_run(table, tmp_path, name, seed, 0.5)
    found = report_of(table, tmp_path).verdicts[Claim.parse("one < two")][LOSS]
    assert (found.verdict, found.difference) == (OPEN, None)
    assert "schedule" in found.reason


def test_a_row_of_failed_runs_is_judged_by_ranks(table, tmp_path):
    shift = {seed: (3 * seed) % 5 / 100 for seed in range(1, 6)}
    for seed in range(1, 6):
        save_run(table, tmp_path, "one", seed, 0.5, loss=2.0 + shift[seed])
        save_run(table, tmp_path, "two", seed, 0.5, loss=1.9 + shift[seed] + (2 * seed) % 5 / 1000)
        save_run(table, tmp_path, "three", seed, 0.5, loss=2.1 if seed == 2 else 4.0 + shift[seed])
    report = report_of(replace(table, claims=[Claim.parse("three < one")]), tmp_path)
    found = report.verdicts[Claim.parse("three < one")][LOSS]
    assert found.verdict == HOLDS
    assert found.difference.chance_below(0) == pytest.approx(1 / 252)
    assert isinstance(report.difference("one", "two"), Difference)


def test_a_damaged_record_is_named(table, tmp_path):
    record = save_run(table, tmp_path, "one", 1, 0.8)
    path = tmp_path / f"{record.name}.json"
    path.write_text(path.read_text()[:-30])
    with pytest.raises(ValueError, match=f"{record.name}.json: cannot be read as a record"):
        Evidence.load(tmp_path)
    for recipe, message in (({}, "unknown task None"), ({"task": record.recipe["task"]}, "lacks training.seed")):
        path.write_text(json.dumps({"format_version": 1, "name": "a", "recipe": recipe}))
        with pytest.raises(ValueError, match=f"{record.name}: {message}"):
            Evidence.load(tmp_path)
    path.write_text(json.dumps({"format_version": 99}))
    with pytest.raises(ValueError, match="is no record of a run, or one of a newer"):
        Evidence.load(tmp_path)


@pytest.mark.parametrize("content", [b"", b"PK", None], ids=["empty", "cut short", "cut in half"])
def test_damaged_rows_are_named(table, tmp_path, content):
    record = save_run(table, tmp_path, "one", 1, 0.8)
    path = tmp_path / f"{record.name}.npz"
    path.write_bytes(path.read_bytes()[:200] if content is None else content)
    with pytest.raises(ValueError, match=f"{record.name}.npz: cannot be read"):
        load_records(tmp_path)


def test_verdicts_follow_from_the_runs(table, tmp_path):
    for seed in (1, 2, 3):
        save_run(table, tmp_path, "one", seed, 0.60)
        save_run(table, tmp_path, "two", seed, 0.80, zeros=0.5 + 0.01 * seed)
        save_run(table, tmp_path, "three", seed, 0.60)
    report = report_of(table, tmp_path)
    found = verdicts(report)
    assert found["one < two"] == HOLDS
    assert found["two > three"] == HOLDS
    assert found["zeros: two > one"] == HOLDS
    text = report.markdown()
    assert "| two | – | 3 | 1." in text
    assert "- tiny." in text
    assert "abc" in text


def test_all_claims_are_drawn(table, tmp_path):
    with pytest.raises(ValueError, match="nothing to draw"):
        plot_claims([report_of(table, tmp_path)], tmp_path / "claims.svg")
    for seed in (1, 2, 3):
        for name, share in (("one", 0.6), ("two", 0.8)):
            save_run(table, tmp_path, name, seed, share)
    pictures = [plot_claims([report_of(table, tmp_path)], tmp_path / name) for name in ("a.svg", "b.svg")]
    assert pictures[0].read_bytes() == pictures[1].read_bytes()
    drawn = pictures[0].read_text()
    assert "one &lt; two" in drawn, "as comments of the paths that its letters are"
    assert "three" not in drawn, "which has no runs"


def test_what_is_worse_does_not_hold(table, tmp_path):
    for seed in (1, 2, 3):
        save_run(table, tmp_path, "one", seed, 0.80)
        save_run(table, tmp_path, "two", seed, 0.60)
        save_run(table, tmp_path, "three", seed, 0.60)
    found = verdicts(report_of(table, tmp_path))
    assert found["one < two"] == REVERSED
    assert found["three >= one"] == REVERSED
    assert found["three ~ one"] == DIFFERS


def test_wide_seeds_decide_nothing(table, tmp_path):
    for seed, share in ((1, 0.0), (2, 1.0)):
        save_run(table, tmp_path, "one", seed, share)
        save_run(table, tmp_path, "two", seed, share + 0.03)
    report = report_of(table, tmp_path)
    found = {claim.text: found for claim, found in report.verdicts.items()}
    assert found["one < two"]["accuracy"].verdict == OPEN
    assert found["one < two"]["accuracy"].found_from > 0.03
    assert found["two > three"][LOSS].reason == "needs two seeds of both, has 2 and 0"
    assert ", found from " in report.markdown()
    assert "| one | 0.7 | 2 | 1.500 ± 0.707 | 50.00% ± 70.71% |" in report.markdown()  # the spread of a sample


def test_claims_are_shown_as_far_as_they_can_be_judged(table, tmp_path):
    text = (tmp_path / "t.yaml").read_text()
    text = text.replace("{recipe: base.yaml,", "{recipe: base.yaml, rows: [one, two, four, five],")
    text = text.replace(
        "claims:", "  four: {model: {preset: qknorm}}\n  five: {model: {preset: relu-vit}}\nclaims:\n  - four ~ five"
    )
    (tmp_path / "t.yaml").write_text(text)
    table = Table.load(str(tmp_path / "t.yaml"))
    for seed in (1, 2):
        save_run(table, tmp_path, "one", seed, 0.5)
    text = report_of(table, tmp_path).markdown()
    reason = "open: needs two seeds of both, has 0 and 2"
    assert f"| one < two | {reason} | {reason} |" in text
    assert "three" not in text, "a row of no run of this setting"
    assert "| four" not in text
    assert text.endswith("Claims of rows without a run: `four ~ five`.\n")


def test_rows_that_were_asked_for_are_shown_alone(table, tmp_path):
    for seed in (1, 2, 3, 4, 5):
        for name, share in (("one", 0.5), ("two", 0.7), ("three", 0.5)):
            save_run(table, tmp_path, name, seed, share)
    text = report_of(table, tmp_path, rows=["one", "two"]).markdown()
    assert "lead on `one`" in text
    unexplained = report_of(table, tmp_path, rows=["one", "two"]).markdown(explain=False)
    (line,) = set(text.splitlines()) - set(unexplained.splitlines())
    assert line.startswith("- loss on the validation set")
    without_baseline = report_of(table, tmp_path, rows=["two", "three"]).markdown()
    assert "lead on one" not in without_baseline
    assert "| two > three |" in without_baseline


def test_a_row_that_always_diverges_is_the_worse_one(table, tmp_path):
    for seed in (1, 2):
        save_run(table, tmp_path, "one", seed, 0.5, diverged="the loss was nan at update 7")
        save_run(table, tmp_path, "two", seed, 0.6)
        save_run(table, tmp_path, "three", seed, 0.5, diverged="the loss was nan at update 7")
    report = report_of(table, tmp_path)
    assert verdicts(report)["one < two"] == verdicts(report)["two > three"] == HOLDS
    assert verdicts(report)["three >= one"] == verdicts(report)["zeros: two > one"] == OPEN
    assert "0 + 2 diverged" in report.markdown()
    for seed in (1, 2):
        save_run(table, tmp_path, "one", seed, 0.5)
    report = report_of(table, tmp_path)
    assert (verdicts(report)["three >= one"], verdicts(report)["three ~ one"]) == (REVERSED, DIFFERS)
    assert report.verdicts[table.claims[2]][LOSS].reason == "all 2 runs of three diverged"


@pytest.mark.parametrize(
    ("relation", "value", "verdict"),
    [
        (">", 0.004, HOLDS),
        (">", -0.004, REVERSED),
        (">", 0.03, HOLDS),
        (">=", -0.015, HOLDS),
        (">=", -0.03, REVERSED),
        (">=", 0.03, HOLDS),
        ("~", -0.015, HOLDS),
        ("~", 0.015, HOLDS),
        ("~", -0.03, DIFFERS),
        ("~", 0.03, DIFFERS),
    ],
)
def test_a_claim_fails_beyond_its_margin_alone(relation, value, verdict):
    """With a margin of 0.02 and little doubt about the difference."""
    false, true, reverse = _chances(relation, Difference(value, 5e-4, 20), 0.02)
    found = HOLDS if false < 0.05 else REVERSED if reverse < 0.05 else _FAILS[relation] if true < 0.05 else OPEN
    assert found == verdict


def test_a_claim_of_two_sides_fails_at_twice_the_chance():
    found = Difference(0.025, 0.002, 20)
    assert _chances("~", found, 0.02)[1] == pytest.approx(2 * found.chance_below(0.02))


def test_what_is_tested_often_is_corrected_for(table, tmp_path, monkeypatch):
    """Holm's correction makes 0.08 of 0.02 for the first of four claims about the score."""
    for seed in (1, 2):
        for name in table.rows:
            save_run(table, tmp_path, name, seed, 0.5)
    for chances in ((0.02, 0.9, 0.9), (0.9, 0.02, 0.9), (0.9, 0.9, 0.02)):
        monkeypatch.setattr("reluformers_research.report._chances", lambda *_, chances=chances: chances)
        found = verdicts(report_of(table, tmp_path))
        assert {found[text] for text in found if ":" not in text} == {OPEN}


def test_rows_of_other_data_are_not_compared(table, tmp_path):
    for seed in (1, 2):
        save_run(table, tmp_path, "one", seed, 0.5)
        save_run(table, tmp_path, "two", seed, 0.6, checksum="2")
    with pytest.raises(ValueError, match="runs scored on different test sets"):
        report_of(table, tmp_path)


def test_runs_of_one_row_are_of_one_training_set(table, tmp_path):
    for seed, checksum in ((1, "a"), (2, "b")):
        save_run(table, tmp_path, "one", seed, 0.5, train=checksum)
    with pytest.raises(ValueError, match=r"row one: there are runs trained on different files"):
        report_of(table, tmp_path)


def test_runs_are_scored_in_one_way(table, tmp_path):
    save_run(table, tmp_path, "one", 1, 0.5)
    record = save_run(table, tmp_path, "one", 2, 0.5)
    path = tmp_path / f"{record.name}.json"
    content = json.loads(path.read_text())
    for score in content["evaluation"]["scores"].values():
        score["signature"] = "tok:none"
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="row one: there are runs with the signatures None and tok:none"):
        report_of(table, tmp_path)


def test_what_is_half_written_is_no_record(table, tmp_path):
    save_run(table, tmp_path, "one", 1, 0.5)
    (tmp_path / ".tmp-0a1b2c3d-one-2.json").write_text("{")
    assert len(report_of(table, tmp_path).runs["one"].records) == 1


def test_a_seed_does_not_count_twice(table, tmp_path):
    record = save_run(table, tmp_path, "one", 1, 0.5)
    shutil.copy(tmp_path / f"{record.name}.npz", tmp_path / "another-1.npz")
    content = (tmp_path / f"{record.name}.json").read_text()
    (tmp_path / "another-1.json").write_text(content.replace(record.name, "another-1"))
    with pytest.raises(ValueError, match=r"are both the run of .*, row one, with seed 1"):
        report_of(table, tmp_path)


def test_records_of_other_rows_are_left_alone(table, tmp_path):
    save_run(table, tmp_path, "one", 1, 0.5)
    other = table.recipe("small", table.rows["one"], 1, ["training.max_steps=3"])
    RunRecord(run_name(other), public_sections(other), diverged="x").save(tmp_path)
    report = report_of(table, tmp_path)
    assert [record.seed for record in report.runs["one"].records] == [1]
    assert not report.runs["one"].diverged


PAGE = """# Results
<!-- table: source/t1 small -->
old
<!-- end of table -->
words
<!-- table: source/t2 small -->
<!-- end of table -->
"""


def test_the_list_of_claims_is_written_anew(table, tmp_path):
    for seed in (1, 2, 3):
        for name, share in (("one", 0.6), ("two", 0.8)):
            save_run(table, tmp_path, name, seed, share)
    page = "before\n<!-- claims -->\nold\n<!-- end of claims -->\nafter\n"
    written = replace_claims(page, [report_of(table, tmp_path)])
    assert "\nold" not in written
    assert "| one < two | ✓ holds |" in written
    assert "of 1 claims of the papers 1 hold, 0 do not and 0 are open" in written
    assert "three" not in written, "which has no runs"
    assert written.startswith("before\n")
    assert written.endswith("after\n")
    assert replace_claims("nothing", []) == "nothing"


def test_blocks_of_a_page_are_written_anew():
    assert tables_in(PAGE) == [("source/t1", "small"), ("source/t2", "small")]
    written = replace_tables(PAGE, {("source/t1", "small"): "| a |\n"})
    assert "old" not in written
    assert "small -->\n| a |\n<!-- end" in written
    assert "\nwords\n" in written
    assert replace_tables(written, {("source/t1", "small"): "| a |\n"}) == written
    with pytest.raises(ValueError, match="no line <!-- table: source/t3 small -->"):
        replace_tables(PAGE, {("source/t3", "small"): ""})
    for damaged in (PAGE.replace("<!-- end of table -->", "", 1), PAGE.replace("t1 small -->", "t1 small->")):
        with pytest.raises(ValueError, match="the page has a line with '<!-- table: '"):
            replace_tables(damaged, {("source/t2", "small"): ""})
