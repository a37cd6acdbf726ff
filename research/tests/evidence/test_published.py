"""What docs/research/results.md and the pages beside it say follows from the records in research/records."""

import re
from collections import defaultdict
from pathlib import Path

import pytest
from datasets import load_dataset

from reluformers_research.causal.scoring import mean_nats
from reluformers_research.commands.table import write_pages
from reluformers_research.leads import plot_leads
from reluformers_research.page import tables_in
from reluformers_research.records import LOSS
from reluformers_research.report import TableReport
from reluformers_research.tables import Table, row_key
from reluformers_research.tasks import TASKS, task_named

ROOT = Path(__file__).resolve().parents[3]
RECORDS = ROOT / "research" / "records"
PAGE = ROOT / "docs" / "research" / "results.md"
PAGES = [PAGE, *sorted((PAGE.parent / "results").glob("*.md"))]
TABLES = [table for page in PAGES for table in tables_in(page.read_text(encoding="utf-8"))]
_BLOCK = re.compile(r"<!-- (table|leads|counts).*?<!-- end of \1 -->", re.DOTALL)


pytestmark = pytest.mark.xdist_group("records")


def test_every_record_is_of_a_row_that_the_page_shows(evidence, recipes):
    keys = {row_key(recipe) for (table, setting, _), recipe in recipes.items() if (table, setting) in TABLES}
    assert evidence
    assert set(evidence.rows()) <= keys
    for record in (record for key in evidence.rows() for record in evidence.of_row(key)):
        if record.evaluation is not None:
            for metric, counts in record.counts.items():
                if metric == LOSS != task_named(record.recipe["task"]).main_metric:  # of the validation set
                    # A run in bfloat16 measures its loss in it, and that of each row in float32.
                    tolerance = 1e-3 if record.recipe["training"].get("bf16") else 1e-4
                    loss = record.results["validation_loss"]
                    assert mean_nats(counts.sum(0)) == pytest.approx(loss, abs=tolerance)
                    continue
                assert len(counts) == record.evaluation.data.rows
                score = record.evaluation.scores[metric].value
                assert task_named(record.recipe["task"]).scorer.scores_of_sums()[metric](
                    counts.sum(0)
                ) == pytest.approx(score)
            commit = record.evaluation.circumstances.commit
            assert commit
            assert not commit.endswith("+"), "a run of code that was not committed"


def test_the_records_are_a_dataset_that_names_their_rows(evidence, recipes, tmp_path):
    """As the card's `configs` have it; files that git keeps in one piece."""
    splits = {}
    for config in ("default", "causal"):
        splits |= load_dataset(str(RECORDS), config, cache_dir=str(tmp_path))
    rows = defaultdict(list)
    for (table, setting, row), recipe in recipes.items():
        rows[row_key(recipe)].append({"table": table, "setting": setting, "row": row})
    named = {
        row["name"]: row["tables"] for split in splits.values() for row in split.select_columns(["name", "tables"])
    }
    assert named == {record.name: rows[key] for key in evidence.rows() for record in evidence.of_row(key)}
    assert splits.keys() == {task.replace("-", "_") for task in TASKS}
    assert all(path.stat().st_size < 20_000_000 for path in RECORDS.iterdir())


@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in ("causal-llama.md", "tatoeba.md")])
def test_leads_in_the_words_are_those_of_the_tables(page):
    """Numbers of three decimals, which are nats."""
    texts = [each.read_text(encoding="utf-8") for each in PAGES]
    shown = {
        number for text in texts for block in _BLOCK.finditer(text) for number in re.findall(r"\d+\.\d{3}", block[0])
    }
    said = set(re.findall(r"\d+\.\d{3}\b", _BLOCK.sub("", page.read_text(encoding="utf-8"))))
    # margins, p-values and the machines' part are of no table
    assert said - {"0.035", "0.043", "0.056", "0.021", "0.087", "0.028", "0.014", "0.026"} <= shown


def test_leads_in_bleu_in_the_words_are_those_of_the_records(evidence):
    """The tables have no interval of BLEU."""
    page = PAGE.read_text(encoding="utf-8")
    for name, first, second in (
        ("rela/t3", "en-fr/rela-g", "en-fr/softmax"),
        ("rela/t3", "en-fr/reluformer", "en-fr/softmax"),
        ("reluformer/t6", "128/reluformer", "128/softmax"),
    ):
        report = TableReport(Table.load(name), "small", evidence)
        lead = report.difference_text(report.difference(first, second, "bleu"), "bleu")
        assert lead in " ".join(page.split())


@pytest.mark.slow
def test_the_tables_are_those_of_the_records(tmp_path):
    copies = {page: tmp_path / page.name for page in PAGES}
    for page, copy in copies.items():
        copy.write_text(page.read_text(encoding="utf-8"), encoding="utf-8")
    leads = write_pages(list(copies.values()), RECORDS)
    for page, copy in copies.items():
        assert copy.read_text(encoding="utf-8") == page.read_text(encoding="utf-8")
    assert plot_leads(leads, tmp_path / "leads.png").stat().st_size > 0
