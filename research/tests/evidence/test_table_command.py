"""`reluformers table`: rows over seeds, stopped and gone on with, and the table of what has run."""

from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml
from sacrebleu.metrics import BLEU, CHRF

from builders.commands import refusal_of, run_command
from builders.image_runs import make_image_recipe, write_images
from builders.translation_runs import make_recipe, write_pairs
from reluformers.tasks import task_named
from reluformers_research.causal.scoring import mean_nats
from reluformers_research.records import load_records
from reluformers_research.row import Job, _source, run_job
from reluformers_research.row_scores import score_of_sums
from reluformers_research.tables import run_name

EVIDENCE = Path(__file__).resolve().parents[2] / "records"
TABLE = {
    "title": "toy",
    "margin": 0.5,
    "baseline": "softmax",
    "settings": {"paper": {"recipe": "toy.yaml"}},
    "rows": {"softmax": {"paper": 1.0, "model": {"preset": "softmax"}}, "relu": {"model": {"preset": "relu"}}},
    "claims": ["relu < softmax"],
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("toy")
    return {name: write_pairs(folder, name, rows) for name, rows in (("train", 120), ("validation", 6), ("test", 8))}


@pytest.fixture
def table_file(tmp_path, files):
    make_recipe(files).save(tmp_path / "toy.yaml")
    (tmp_path / "table.yaml").write_text(yaml.safe_dump(TABLE, sort_keys=False))
    return tmp_path / "table.yaml"


@pytest.fixture(scope="module")
def job(files, tmp_path_factory) -> Job:
    """A row that has run."""
    folder, recipe = tmp_path_factory.mktemp("row"), make_recipe(files, eval_strategy="epoch")
    name = run_name(recipe)
    job = Job(name, recipe.to_dict(), {}, str(folder / name), str(folder / "records"))
    job.save(folder / "job.json")
    run_job(folder / "job.json")
    return job


def test_a_row_leaves_a_record(job):
    (record,) = load_records(Path(job.records))
    rows = record.counts
    assert len(record.translations) == 8
    assert rows["bleu"].shape == (8, 10)
    assert score_of_sums(BLEU(), rows["bleu"].sum(0)) == pytest.approx(record.score)
    assert score_of_sums(CHRF(), rows["chrf"].sum(0)) == pytest.approx(record.evaluation.scores["chrf"].value)
    assert rows["loss"].shape == (6, 2)
    assert mean_nats(rows["loss"].sum(0)) == pytest.approx(record.results["validation_loss"], abs=1e-4)
    assert record.evaluation.data.source == "test.en, test.de"
    assert record.evaluation.attention is not None
    assert record.evaluation.circumstances.seed == record.seed == 3
    assert len(record.data["train"]["sha256"]) == 2
    assert all(len(digest) == 64 for digest in (*record.data["train"]["sha256"], record.tokenizer))
    assert record.processor_seconds > 0
    assert record.memory > 0
    assert any("eval_loss" in entry for entry in record.log)
    path = Path(job.records, f"{job.name}.parquet")
    assert str(path.parents[1]) not in str(pq.read_table(path).to_pylist()), "nothing of this machine"


def test_a_row_of_images_leaves_a_record(tmp_path):
    sizes = {"train": 32, "validation": 9, "test": 16}
    recipe = make_image_recipe({name: write_images(tmp_path, name, rows) for name, rows in sizes.items()})
    job = Job("images", recipe.to_dict(), {}, str(tmp_path / "run"), str(tmp_path / "records"))
    job.save(tmp_path / "job.json")
    run_job(tmp_path / "job.json")
    (record,) = load_records(tmp_path / "records")
    assert record.counts["accuracy"].shape == (16, 2)
    correct, images = record.counts["accuracy"].sum(0)
    assert correct / images == pytest.approx(record.score)
    assert record.counts["loss"].shape == (9, 2)
    assert mean_nats(record.counts["loss"].sum(0)) == pytest.approx(record.results["validation_loss"], abs=1e-4)


def test_images_of_a_folder_have_a_checksum(tmp_path):
    recipe = task_named("image-classification").recipe_class.from_sections(
        {"task": "image-classification", "data": {"path": str(tmp_path), "train": "train[10:]", "test": "test"}}, "x"
    )
    for name in ("a", "b"):
        (tmp_path / f"{name}.parquet").write_text(name)
    before = _source(recipe, "train")
    assert before["name"] == tmp_path.name
    assert before["sha256"] == _source(recipe, "test")["sha256"]
    (tmp_path / "c.parquet").write_text("another")
    assert _source(recipe, "train")["sha256"] != before["sha256"]


def test_a_row_without_a_record_goes_on_from_its_checkpoint(job, tmp_path):
    again = replace(job, records=str(tmp_path / "records"))
    assert not again.is_done
    again.save(tmp_path / "job.json")
    run_job(tmp_path / "job.json")
    (resumed,) = load_records(tmp_path / "records")
    (whole,) = load_records(Path(job.records))
    assert (resumed.seconds, resumed.score) == (None, whole.score)


@pytest.mark.slow
def test_the_whole_command(table_file, files, tmp_path, capsys):
    options = ["--seeds", "1", "2", "--jobs", "2", "--output_dir", tmp_path / "runs"]
    run_command("table", table_file, *options)
    printed = capsys.readouterr().out
    assert "| softmax | 1.0 |" in printed
    run_command("table", table_file, *options)
    assert "4 of 4 runs are done" in capsys.readouterr().out
    page = tmp_path / "page.md"
    page.write_text(f"<!-- table: {table_file} paper -->\n<!-- end of table -->\n")
    run_command("table", "--write", page, "--records", tmp_path / "runs" / "records")
    assert "| relu < softmax |" in page.read_text()


def test_a_page_is_not_emptied(tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text("<!-- table: reluformer/t2 small -->\n| 28.07 |\n<!-- end of table -->\n")
    for records in ([], ["--records", tmp_path]):
        line = refusal_of(capsys, "table", "--write", page, "--output_dir", tmp_path / "runs", *records)
        assert "holds no record of a run" in line
    assert "28.07" in page.read_text()


def row_of_records(folder) -> list[str]:
    """Arguments for a row of a table that has run, whose data lie in a folder."""
    names = {"train": "train", "validation": "validation", "test": "test_2016_flickr"}
    files = [f"data.{split}={folder}/{name}.jsonl.gz" for split, name in names.items()]
    return ["--setting", "small", "--rows", "relu", "--seeds", "1", "--records", EVIDENCE, *files]


def test_a_finished_table_needs_no_data(tmp_path, capsys):
    run_command("table", "reluformer/t2", *row_of_records("nowhere"), "--output_dir", tmp_path)
    assert "1 of 1 runs are done" in capsys.readouterr().out


def test_records_that_were_scored_otherwise_are_refused(tmp_path, capsys):
    content = yaml.safe_load(Path("research/recipes/reluformer/t2.yaml").read_text(encoding="utf-8"))
    content["settings"]["small"]["evaluate"] = {"tokenize": "intl"}
    content["settings"]["small"]["recipe"] = str(Path("scripts/recipes/small_multi30k.yaml").resolve())
    (tmp_path / "t2.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    line = refusal_of(capsys, "table", tmp_path / "t2.yaml", *row_of_records("nowhere"), "--output_dir", tmp_path)
    assert "{'tokenize': 'intl'}" in line


def test_records_of_other_files_of_the_same_names_are_refused(tmp_path, capsys):
    for name in ("train", "validation", "test_2016_flickr"):
        (tmp_path / f"{name}.jsonl.gz").touch()
    line = refusal_of(capsys, "table", "reluformer/t2", *row_of_records(tmp_path), "--output_dir", tmp_path / "runs")
    assert "its data.train is another file" in line
