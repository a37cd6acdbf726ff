# Copyright 2026 the reluformers authors
# SPDX-License-Identifier: Apache-2.0
"""Inline tags such as <b>…</b> and <br/>: taken out of a text before it is translated, put into its translation after.

The translation's units, words and punctuation marks, are aligned with those of the source; a tag follows them.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

# a word, or one punctuation mark: a tag may end before the full stop
UNITS = r"\w+|[^\w\s]"
_TAG = re.compile(r"<(?P<closes>/?)(?P<name>[A-Za-z][\w:.-]*)(?:\s[^<>]*?)?(?P<alone>/?)>")


@dataclass
class InlineTag:
    """A tag and what is inside of it.

    Args:
        opening: as it is written.
        closing: its end, as it is written; empty if it stands alone, as <br/> does or a tag without its other half.
        start, end: characters of the text without tags that it is around; of one that stands alone both are its place.
        is_detached: whether there was a blank, or nothing, before it and after it.
        children: tags inside of it, in their order.
    """

    opening: str
    closing: str = ""
    start: int = 0
    end: int = 0
    is_detached: tuple[bool, bool] = (False, False)
    children: list["InlineTag"] = field(default_factory=list)


def take_tags(text: str) -> tuple[str, list[InlineTag]]:
    """A text without its tags, and these as a forest; a blank stands in for one that stood alone between two words."""
    marks = list(_TAG.finditer(text))
    partners = _pair(marks)
    plain, end, root = "", 0, InlineTag("")
    stack = [root]
    for number, mark in enumerate(marks):
        plain += text[end : mark.start()]
        end = mark.end()
        if partners[number] is not None and partners[number] < number:
            tag = stack.pop()
            tag.closing, tag.end = mark[0], len(plain)
            continue
        detached = not text[: mark.start()][-1:].strip(), not text[end : end + 1].strip()
        tag = InlineTag(mark[0], "", len(plain), len(plain), detached)
        stack[-1].children.append(tag)
        if partners[number] is not None:
            stack.append(tag)
        elif not any(detached):
            plain += " "
    return plain + text[end:], root.children


def _pair(marks: Sequence[re.Match]) -> list[int | None]:
    """For each tag the number of its other half; None for those that stand alone."""
    partners: list[int | None] = [None] * len(marks)
    opened: list[int] = []
    for number, mark in enumerate(marks):
        if mark["closes"]:
            same = [place for place, other in enumerate(opened) if marks[other]["name"] == mark["name"]]
            if same:  # what was opened inside of it and is not closed stands alone
                partners[number] = opened[same[-1]]
                partners[opened[same[-1]]] = number
                del opened[same[-1] :]
        elif not mark["alone"]:
            opened.append(number)
    return partners


class TagProjection:
    """Puts the tags of a source into its translation, each once and well nested.

    A pair goes around the run of units that gains most: +1 for a unit aligned inside of the pair, −1 for one outside,
    0 for one of no alignment; of equal runs the first and shortest. A tag that stands alone, and a pair that nothing
    is aligned with, goes where it has the fewest units on the wrong side, of equal places that of its share of the
    source. A child stays in its parent, and of siblings the earlier one has the first choice.

    Args:
        source: text without tags.
        target: its translation.
        source_of: for each unit of the target the number of the source unit that it is aligned with, or None.
    """

    def __init__(self, source: str, target: str, source_of: Sequence[int | None]):
        self.source_spans = [match.span() for match in re.finditer(UNITS, source)]
        self.target_spans = [match.span() for match in re.finditer(UNITS, target)]
        if len(source_of) != len(self.target_spans):
            raise ValueError(f"source_of has {len(source_of)} units, but the target {len(self.target_spans)}")
        self.target, self.source_of = target, source_of

    def insert(self, tags: Sequence[InlineTag]) -> str:
        """The translation with the tags."""
        last = len(self.target_spans)
        before = self.target[: self.target_spans[0][0]] if last else self.target
        after = self.target[self.target_spans[-1][1] :] if last else ""
        return before + self._render(tags, 0, last) + after

    def _render(self, tags: Sequence[InlineTag], low: int, high: int) -> str:
        """Units from `low` to before `high`, with the tags among them."""
        places = self._place(tags, low, high)
        pieces: list[str] = []
        alone = {}
        for number, (first, end) in places.items():
            if first == end:
                alone.setdefault(first, []).append(tags[number])
        pairs = {first: (end, tags[number]) for number, (first, end) in places.items() if first < end}
        unit = low
        while unit < high or unit in alone:
            pieces.append(self._join(alone.pop(unit, []), unit, low, high))
            if unit == high:
                break
            end, tag = pairs.get(unit, (unit + 1, None))
            start = self.target_spans[unit][0]
            plain = self.target[start : self.target_spans[unit][1]]
            pieces.append(plain if tag is None else tag.opening + self._render(tag.children, unit, end) + tag.closing)
            unit = end
        return "".join(pieces)

    def _join(self, alone: Sequence[InlineTag], unit: int, low: int, high: int) -> str:
        """What stands between a unit and the one before it: their gap, and tags that stand alone."""
        gap = self.target[self.target_spans[unit - 1][1] : self.target_spans[unit][0]] if low < unit < high else ""
        left, right = "", ""
        for tag in alone:
            text = tag.opening + "".join(_flat(tag.children)) + tag.closing
            if tag.is_detached[0] and unit > low:
                gap = gap or " "
            if tag.is_detached == (False, True):
                left += text
            else:
                right += text + (" " if tag.is_detached[1] and unit < high else "")
                gap = gap if any(tag.is_detached) else gap.strip()
        return left + gap + right

    def _place(self, tags: Sequence[InlineTag], low: int, high: int) -> dict[int, tuple[int, int]]:
        """Number of a tag → its units in the target, from the first to before the last."""
        places: dict[int, tuple[int, int]] = {}
        is_free = [low <= unit < high for unit in range(len(self.target_spans))]
        for number, tag in enumerate(tags):
            first, end = self._best_run(self._source_units(tag), low, high, is_free)
            if first < end:
                places[number] = first, end
                is_free[first:end] = [False] * (end - first)
        inside = {cut for first, end in places.values() for cut in range(first + 1, end)}
        cuts = [cut for cut in range(low, high + 1) if cut not in inside]
        for number, tag in enumerate(tags):
            if number not in places:
                places[number] = (self._best_cut(self._source_units(tag)[0], low, high, cuts),) * 2
        return places

    def _source_units(self, tag: InlineTag) -> tuple[int, int]:
        """The source units that a tag is around, from the first to before the last."""
        first = sum(end <= tag.start for _, end in self.source_spans)
        return first, first if tag.start == tag.end else sum(start < tag.end for start, _ in self.source_spans)

    def _best_run(self, units: tuple[int, int], low: int, high: int, is_free: Sequence[bool]) -> tuple[int, int]:
        best, run, gained, first = 0, (low, low), 0, low
        for unit in range(low, high):
            source = self.source_of[unit]
            if gained <= 0 or not is_free[unit]:
                gained, first = 0, unit
            if is_free[unit] and source is not None:
                gained += 1 if units[0] <= source < units[1] else -1
            if is_free[unit] and gained > best:
                best, run = gained, (first, unit + 1)
        return run

    def _best_cut(self, place: int, low: int, high: int, cuts: Sequence[int]) -> int:
        share = place / max(len(self.source_spans), 1) * len(self.target_spans)

        def cost(cut: int) -> tuple[int, float]:
            known = [(unit, self.source_of[unit]) for unit in range(low, high) if self.source_of[unit] is not None]
            return sum((unit < cut) != (source < place) for unit, source in known), abs(cut - share)

        return min(cuts, key=cost)


def _flat(tags: Sequence[InlineTag]) -> list[str]:
    """Tags of an empty pair, without anything between them."""
    return [tag.opening + "".join(_flat(tag.children)) + tag.closing for tag in tags]
