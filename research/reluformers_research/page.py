"""A page of tables: blocks that are written anew from the records, and the list of all claims."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from reluformers.evaluation.attention_statistics import MISSING
from reluformers.evaluation.results import markdown_table

from .evidence import LOSS
from .report import HOLDS, OPEN, TableReport, Verdict
from .tables import Claim

_BEGIN = "<!-- table: "
_BLOCK = re.compile(rf"({_BEGIN}(\S+) (\S+) -->\n)(?:(?!{_BEGIN}).)*?(<!-- end of table -->)", re.DOTALL)
_CLAIMS = re.compile(r"(<!-- claims -->\n).*?(<!-- end of claims -->)", re.DOTALL)
FAILS = "does not"  # `REVERSED`, `TOO_SMALL` or `DIFFERS`
_MARKS = {HOLDS: "✓", OPEN: "?"}
# folder of a table's file → what its claims are
_ORIGINS = {"open": "questions of our own", "causal": "claims about causal models"}


def tables_in(text: str) -> list[tuple[str, str]]:
    """(Name, setting) of the blocks of a page."""
    return [(name, setting) for _, name, setting, _ in _BLOCK.findall(text)]


def replace_tables(text: str, tables: Mapping[tuple[str, str], str]) -> str:
    """A page with the blocks between `<!-- table: NAME SETTING -->` and `<!-- end of table -->` written anew.

    Args:
        text: of the page.
        tables: (name, setting) → Markdown; blocks of others stay as they are.

    Raises:
        ValueError: the page has no block for one of `tables`, or one that is not as above.
    """
    blocks = tables_in(text)
    if text.count(_BEGIN) != len(blocks):
        raise ValueError(
            f"the page has a line with {_BEGIN!r}, but not NAME SETTING --> behind it and an end below it"
        )
    missing = tables.keys() - set(blocks)
    if missing:
        raise ValueError(
            f"the page has no line <!-- table: {' '.join(min(missing))} --> with an end of table below it"
        )

    def written(found: re.Match) -> str:
        markdown = tables.get((found[2], found[3]))
        return found[0] if markdown is None else f"{found[1]}{markdown}{found[4]}"

    return _BLOCK.sub(written, text)


def replace_claims(text: str, reports: Sequence[TableReport]) -> str:
    """A page with what stands between `<!-- claims -->` and `<!-- end of claims -->`, if it has that, written anew."""
    return _CLAIMS.sub(lambda found: f"{found[1]}{claims_table(reports)}{found[2]}", text)


def judged(report: TableReport) -> dict[Claim, dict[str, Verdict]]:
    """Claims of a table about the score that have runs of both rows."""
    return {
        claim: found
        for claim, found in report.verdicts.items()
        if LOSS in found and (found[LOSS].difference is not None or found[LOSS].verdict != OPEN)
    }


def claims_table(reports: Sequence[TableReport]) -> str:
    """How many claims hold; then a line for each, with its lead by loss and the verdict of each measure."""
    lines, contradicted, by_origin, by_score = [], [], {}, Counter()
    for report in reports:
        own = judged(report)
        if not own:
            continue
        counts = [Counter(_kind(found[measure]) for found in own.values()) for measure in report.measures]
        origin = _ORIGINS.get(report.table.name.partition("/")[0], "claims of the papers")
        by_origin.setdefault(origin, Counter()).update(counts[0])
        for count in counts[1:2]:
            by_score.update(count)
        main, *second = map(_marks, counts)
        lines.append([f"**{report.table.title}** (`{report.table.name}`)", main, "", *[*second, MISSING][:2]])
        for claim, found in own.items():
            main, *second = (found[measure] for measure in report.measures)
            lead = MISSING if main.difference is None else report.difference_text(main.difference, LOSS)
            lines.append([claim.text, _mark(main), lead, *[*map(_mark, second), MISSING][:2]])
            if any({_kind(main), _kind(verdict)} == {HOLDS, FAILS} for verdict in second):
                contradicted.append(f"`{claim.text}` ({report.table.name} {report.setting})")
    by_loss = "; ".join(f"of {total.total()} {origin} {_shares(total)}" for origin, total in by_origin.items())
    said = f"By the loss, {by_loss}. By BLEU or accuracy, of {by_score.total()} of them {_shares(by_score)}.\n"
    if contradicted:
        said += f"Loss and BLEU or chrF contradict each other on {len(contradicted)}: {'; '.join(contradicted)}.\n"
    return f"{said}\n{markdown_table(['claim', 'by loss', 'lead, nats', 'by BLEU or accuracy', 'by chrF'], lines)}"


def _shares(count: Counter) -> str:
    return f"{count[HOLDS]} hold, {count[FAILS]} do not and {count[OPEN]} are open"


def _marks(count: Counter) -> str:
    return f"{count[HOLDS]} ✓ {count[FAILS]} ✗ {count[OPEN]} ?"


def _mark(verdict: Verdict) -> str:
    return f"{_MARKS.get(verdict.verdict, '✗')} {verdict.verdict}"


def _kind(verdict: Verdict) -> str:
    return verdict.verdict if verdict.verdict in (HOLDS, OPEN) else FAILS
