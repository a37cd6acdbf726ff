"""What docs/research/results.md says of the papers' claims follows from the records in research/records."""

import re
from collections import defaultdict
from pathlib import Path

import pytest
from datasets import load_dataset

from reluformers_research.commands.table import write_page
from reluformers_research.evidence import Evidence
from reluformers_research.page import tables_in
from reluformers_research.tables import Table, list_tables, row_key
from reluformers_research.tasks import TASKS, task_named

ROOT = Path(__file__).resolve().parents[3]
RECORDS = ROOT / "research" / "records"
PAGE = ROOT / "docs" / "research" / "results.md"
TABLES = tables_in(PAGE.read_text(encoding="utf-8"))
_BLOCK = re.compile(r"<!-- table: .*?<!-- end of table -->", re.DOTALL)


def claims_section() -> str:
    """The part of the page whose words stand beside generated tables."""
    return re.search(
        r"^## The papers' claims\n.*?(?=^## )", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )[0]


def test_every_record_is_of_a_row_that_the_page_shows():
    keys = {
        row_key(table.recipe(setting, row, 1)): row.name
        for name, setting in TABLES
        for table in [Table.load(name)]
        for row in table.rows_of(setting)
    }
    evidence = Evidence.load(RECORDS)
    assert evidence
    assert set(evidence.rows()) <= keys.keys()
    for record in (record for key in evidence.rows() for record in evidence.of_row(key)):
        if record.evaluation is not None:
            for metric, counts in record.counts.items():
                assert len(counts) == record.evaluation.data.rows
                score = record.evaluation.scores[metric].value
                assert task_named(record.recipe["task"]).scorer.scores_of_sums()[metric](
                    counts.sum(0)
                ) == pytest.approx(score)
            commit = record.evaluation.circumstances.commit
            assert commit
            assert not commit.endswith("+"), "a run of code that was not committed"


def test_the_records_are_a_dataset_that_names_their_rows(tmp_path):
    """As the card's `configs` have it; files that git keeps in one piece."""
    splits = {}
    for config in ("default", "causal"):
        splits |= load_dataset(str(RECORDS), config, cache_dir=str(tmp_path))
    rows = defaultdict(list)
    for table in map(Table.load, list_tables()):
        for setting in table.settings:
            for row in table.rows_of(setting):
                key = row_key(table.recipe(setting, row, 1))
                rows[key].append({"table": table.name, "setting": setting, "row": row.name})
    named = {
        row["name"]: row["tables"] for split in splits.values() for row in split.select_columns(["name", "tables"])
    }
    evidence = Evidence.load(RECORDS)
    assert named == {record.name: rows[key] for key in evidence.rows() for record in evidence.of_row(key)}
    assert splits.keys() == {task.replace("-", "_") for task in TASKS}
    shown = set(splits["translation"].column_names) | {"table", "row", "setting", "circumstances", "null"}
    assert shown >= set(re.findall(r"`(\w+)`[^|]*\|", (RECORDS / "README.md").read_text(encoding="utf-8"))) - {
        "translation"
    }
    assert all(path.stat().st_size < 20_000_000 for path in RECORDS.iterdir())


def test_numbers_in_the_words_are_those_of_the_tables():
    section = claims_section()
    shown = set(re.findall(r"\d+\.\d+", " ".join(_BLOCK.findall(section))))
    said = set(re.findall(r"\d+\.\d+", _BLOCK.sub("", section)))
    assert said <= shown


@pytest.mark.slow
def test_the_tables_are_those_of_the_records(tmp_path):
    copy = tmp_path / "results.md"
    copy.write_text(PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    write_page(copy, RECORDS)
    assert copy.read_text(encoding="utf-8") == PAGE.read_text(encoding="utf-8")
