"""Inline tags such as <b>…</b> and <br/>: taken out of a text before it is translated, put into its translation after.

The translation's units, words and punctuation marks, are aligned with those of the source; a tag follows them.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from reluformers.modeling.pipeline_translation import TranslationPipeline

UNITS = r"\w+|[^\w\s]"
_TAG = re.compile(r"<(?P<closes>/?)(?P<name>[A-Za-z][\w:.-]*)(?:\s[^<>]*?)?(?P<alone>/?)>")


def translate_tagged(translate: TranslationPipeline, text: str, **options) -> str:
    """Translate a text without its tags, and put each of these into the translation once, well nested.

    Args:
        translate: pipeline, which the code of a saved folder may have opened.
        text: words must be separated by blanks.
        options: of a call of the pipeline.

    Raises:
        ValueError: nothing is left without the tags.
    """
    plain, tags = take_tags(text)
    translation = translate(plain, **options)[0]["translation_text"]
    links = translate.align(plain, translation, UNITS) if translation.strip() else []
    return insert_tags(tags, plain, translation, [link["source_index"] for link in links])


@dataclass
class InlineTag:
    """A pair of tags with those between them, or a tag that stands alone, whose `closing` is empty.

    `start` and `end` are characters of the text without tags that it is around; `left` and `right` are the blanks
    beside a tag that stands alone.
    """

    opening: str = ""
    closing: str = ""
    start: int = 0
    end: int = 0
    left: str = ""
    right: str = ""
    children: list["InlineTag"] = field(default_factory=list)

    def __str__(self) -> str:
        return self.opening + "".join(map(str, self.children)) + self.closing


def take_tags(text: str) -> tuple[str, list[InlineTag]]:
    """Split a text into what is to be translated and its tags, as a forest."""
    marks = list(_TAG.finditer(text))
    partners = _pair(marks)
    plain, position, stack = "", 0, [InlineTag()]
    for number, mark in enumerate(marks):
        plain += text[position : mark.start()]
        position = mark.end()
        if number in partners.values():
            tag = stack.pop()
            tag.closing, tag.end = mark[0], len(plain)
            continue
        tag = InlineTag(mark[0], start=len(plain), end=len(plain))
        stack[-1].children.append(tag)
        if number in partners:
            stack.append(tag)
            continue
        tag.left = " " * text[: mark.start()][-1:].isspace()
        tag.right = " " * text[position : position + 1].isspace()
        plain += "" if tag.left or tag.right else " "
    return plain + text[position:], stack[0].children


def _pair(marks: Sequence[re.Match]) -> dict[int, int]:
    """Map the number of each opening tag that is closed to that of the tag which closes it."""
    partners, opened = {}, []
    for number, mark in enumerate(marks):
        same = [place for place, other in enumerate(opened) if marks[other]["name"] == mark["name"]]
        if mark["closes"] and same:  # what was opened inside of it and is not closed stands alone
            partners[opened[same[-1]]] = number
            del opened[same[-1] :]
        elif not mark["closes"] and not mark["alone"]:
            opened.append(number)
    return partners


def insert_tags(tags: Sequence[InlineTag], source: str, target: str, source_of: Sequence[int | None]) -> str:
    """Put the tags of a source into its translation, each once and well nested.

    A pair goes around the run of units that gains most: +1 for a unit aligned inside of the pair, −1 for one outside,
    0 for one of no alignment. A tag that stands alone, and a pair that nothing is aligned with, goes where it has the
    fewest units on the wrong side. The first of equal runs counts, and of siblings the earlier one chooses first.

    Args:
        tags: as `take_tags` returns them.
        source: text without tags.
        target: its translation.
        source_of: for each unit of the target the index of the source unit that it is aligned with, or None.
    """
    source_spans, spans = ([match.span() for match in re.finditer(UNITS, text)] for text in (source, target))

    def best_run(tag: InlineTag, free: list[int]) -> range:
        inside = range(
            sum(end <= tag.start for _, end in source_spans), sum(start < tag.end for start, _ in source_spans)
        )
        best, run, gain, first = 0, range(0), 0, 0
        for unit in free:
            if gain <= 0 or unit - 1 not in free:
                gain, first = 0, unit
            if source_of[unit] is not None:
                gain += 1 if source_of[unit] in inside else -1
            if gain > best:
                best, run = gain, range(first, unit + 1)
        return run

    def best_cut(tag: InlineTag, cuts: list[int], units: range) -> int:
        before = sum(end <= tag.start for _, end in source_spans)
        share = before / max(len(source_spans), 1) * len(spans)
        known = [unit for unit in units if source_of[unit] is not None]
        wrong = {cut: sum((unit < cut) != (source_of[unit] < before) for unit in known) for cut in cuts}
        return min(cuts, key=lambda cut: (wrong[cut], abs(cut - share)))

    def render(tags: Sequence[InlineTag], units: range) -> str:
        free, cuts, pairs, alone = list(units), [*units, units.stop], {}, []
        for tag in tags:
            run = best_run(tag, free)
            free = [unit for unit in free if unit not in run]
            cuts = [cut for cut in cuts if cut not in run[1:]]
            if run:
                pairs[run.start] = run, tag
            else:
                alone.append(tag)
        places = [best_cut(tag, cuts, units) for tag in alone]
        text = ""
        for cut in cuts:
            gap = target[spans[cut - 1][1] : spans[cut][0]] if units.start < cut < units.stop else ""
            for tag, place in zip(alone, places, strict=True):
                if place == cut:  # an empty pair goes behind the gap, a tag that stands alone brings its blanks
                    text += (gap if tag.closing else tag.left) + str(tag) + tag.right
                    gap = ""
            text += gap
            if cut in pairs:
                run, tag = pairs[cut]
                text += tag.opening + render(tag.children, run) + tag.closing
            elif cut < units.stop:
                text += target[slice(*spans[cut])]
        return text.strip()

    start, end = (spans[0][0], spans[-1][1]) if spans else (0, 0)
    return target[:start] + render(tags, range(len(spans))) + target[end:]
