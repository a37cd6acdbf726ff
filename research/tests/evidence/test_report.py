"""Verdicts by the published records: learning rates, margins of schedules, and where a lead stands."""

import pytest

from reluformers_research.report import AS_SMALL, AT_ONE_RATE, HOLDS, NOT_THERE, TableReport, standing
from reluformers_research.statistics import Difference
from reluformers_research.tables import Table, row_key

pytestmark = pytest.mark.xdist_group("records")


def by_loss(report):
    """Text of a claim → its verdict by the loss."""
    return {claim.text: by_measure["loss"] for claim, by_measure in report.verdicts.items() if "loss" in by_measure}


def test_a_pattern_is_the_row_of_the_best_rate(evidence):
    report = TableReport(Table.load("open/learning_rate"), "small", evidence, rows=["x0.5/*", "x1/*", "x2/*"])
    assert report.row_of("*/softmax/0").row.name == "x0.5/softmax/0"
    by_claim = by_loss(report)
    assert by_claim["*/relu/1.5 > */softmax/0"].verdict == HOLDS
    assert "x0.5/softmax/0 is best of 3, at their edge" in by_claim["*/relu/1.5 > */softmax/0"].notes
    assert by_claim["x1/relu/1.5 > x1/relu/1"].verdict == AT_ONE_RATE


def test_two_rates_are_too_few(evidence):
    table = Table.load("open/learning_rate")
    report = TableReport(table, "small", evidence, rows=["x0.5/*", "x1/*"])
    (claim,) = [claim for claim in report.verdicts if claim.text == "*/relu/1.5 > */softmax/0"]
    assert report.verdicts[claim] == {}


@pytest.mark.parametrize(
    ("name", "margin"),
    [("rela/t3", 0.0211), ("reluformer/t2", 0.0425), ("reluformer/t4", 0.0349), ("reluformer/t6", 0.0352)],
)
def test_the_margin_is_of_the_schedule(evidence, name, margin):
    """Nats that half a BLEU goes with over the rows of each; two rows take those of the largest schedule."""
    table = Table.load(name)
    row = table.rows_of("small")[0]
    nats = evidence.nats(row_key(table.recipe("small", row, 1)))
    assert table.margin * nats == pytest.approx(margin, abs=5e-5)


def test_a_small_lead_of_a_paper_is_no_refutation(evidence):
    by_claim = by_loss(TableReport(Table.load("qknorm/t5"), "small", evidence, rows=["p75", "p90", "p97.5"]))
    assert by_claim["p90 < p97.5"].verdict == AS_SMALL  # 0.35 BLEU in the paper
    assert by_claim["p75 < p97.5"].verdict == NOT_THERE  # 0.66


@pytest.mark.parametrize(
    ("value", "words"),
    [(0.5, "ahead"), (0.15, "ahead, by less than matters"), (-0.15, "behind, by less than matters"), (0.05, "level")],
)
def test_where_a_lead_stands(value, words):
    assert standing(Difference(value, 0.05, 1e6), margin=0.3) == words
    assert standing(Difference(0.05, 0.05, 1e6), margin=0.1) == "open"
