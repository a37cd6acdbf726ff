"""Pages of results: blocks that are written anew from the records."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from reluformers.evaluation.results import markdown_table

from .records import LOSS
from .report import AT_ONE_RATE, HOLDS, OUTCOMES, TableReport, join_names
from .tables import SCORE, Claim

_BEGIN = "<!-- table: "
_BLOCK = re.compile(rf"(<!-- ((\w+)(?:: \S+ \S+)?) -->\n)(?:(?!{_BEGIN}).)*?(<!-- end of \3 -->)", re.DOTALL)
_OPPOSITES = [{HOLDS, "contradicted"}, {AT_ONE_RATE, "contradicted"}]
PAPERS = "claims of papers"
CAUSAL = "claims of papers about causal models"
OURS = "questions of ours"


def tables_in(text: str) -> list[tuple[str, str]]:
    """(Name, setting) of the tables of a page."""
    return [tuple(block.split()[1:]) for _, block, kind, _ in _BLOCK.findall(text) if kind == "table"]


def replace_blocks(text: str, blocks: Mapping[str, str]) -> str:
    """A page with what stands between `<!-- NAME -->` and `<!-- end of … -->` written anew.

    Args:
        text: of the page.
        blocks: NAME, of a table "table: NAME SETTING" → Markdown.

    Raises:
        ValueError: the page has a table that is not as above.
    """
    if text.count(_BEGIN) != len(tables_in(text)):
        raise ValueError(f"a line with {_BEGIN!r} has no NAME SETTING --> behind it, or no end below it")
    return _BLOCK.sub(lambda match: f"{match[1]}{blocks[match[2]]}{match[4]}", text)


def counts(reports: Sequence[TableReport]) -> str:
    """How many claims have which outcome, by whose claims they are."""
    by_loss: dict[str, Counter] = {PAPERS: Counter(), CAUSAL: Counter(), OURS: Counter()}
    by_score = Counter()
    of_statistics = Counter()
    contradicted = []
    for report in reports:
        for claim, verdicts in report.verdicts.items():
            if claim.measure != SCORE:
                of_statistics.update(verdict.outcome for verdict in verdicts.values())
                continue
            if LOSS not in verdicts:
                continue
            main, *second = verdicts.values()
            by_loss[_origin(report, claim)][main.outcome] += 1
            if second and _origin(report, claim) == PAPERS:
                by_score[second[0].outcome] += 1
            if any({main.outcome, verdict.outcome} in _OPPOSITES for verdict in second):
                contradicted.append(f"`{claim.text}` ({report.table.name}, {report.setting})")
    lines = [[f"{name}, by loss", *_row(count)] for name, count in by_loss.items()]
    lines += [["claims of papers, by BLEU or accuracy", *_row(by_score)]]
    lines += [["claims about statistics of the attention", *_row(of_statistics)]]
    text = markdown_table(["", *OUTCOMES, "together"], lines)
    if contradicted:
        text += f"\nLoss and BLEU or chrF answer in opposite ways: {join_names(contradicted)}.\n"
    return text


def _origin(report: TableReport, claim: Claim) -> str:
    if report.table.is_ours or claim.is_ours:
        return OURS
    return CAUSAL if report.task.main_metric == LOSS else PAPERS


def _row(count: Counter) -> list[str]:
    return [*(str(count[outcome]) for outcome in OUTCOMES), str(count.total())]
