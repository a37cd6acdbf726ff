"""Word alignments beside those made by hand: error rates of every layer and head, and formats that others read."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from reluformers.evaluation.alignments import NO_LINK, AlignmentHead, Link, WordAlignments


class GoldAlignment(NamedTuple):
    """Alignment made by hand.

    Args:
        sure: links that must be there.
        possible: further links that may be there.
    """

    sure: list[Link]
    possible: list[Link]

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> "GoldAlignment | None":
        """Read `sure` and perhaps `possible`, lists of [source, target] from 0; None if the row has no `sure`."""
        if "sure" not in row:
            return None
        return cls(*([(source, target) for source, target in row.get(name) or []] for name in cls._fields))


class LinkCounts:
    """Links of every layer and head, counted against those made by hand over a data set.

    With A the links of a model, S the sure ones and P ⊇ S the possible ones, all summed over the pairs:
        AER = 1 − (|A ∩ S| + |A ∩ P|) / (|A| + |S|)
    in [0, 1], 0 at best. Source: Och and Ney 2000; ReLA §5, Figure 4 and Table 5.
    """

    def __init__(self):
        # |A|, |A ∩ S|, |A ∩ P|    [2, layers, heads + 1, 3]
        self.counts: Tensor | int = 0
        self.sure = 0
        self.pairs = 0

    def add(self, aligned: WordAlignments, gold: GoldAlignment, place: str = "the row") -> None:
        """Count one pair; a `ValueError` that names the place of its row, where a link leads to no word."""
        sizes = len(aligned.source), len(aligned.target)
        for link in (*gold.sure, *gold.possible):
            if link[0] not in range(sizes[0]) or link[1] not in range(sizes[1]):
                raise ValueError(f"{place}: link {list(link)} leads to no word, there are {sizes[0]} and {sizes[1]}")
        found = aligned.links != NO_LINK
        is_gold = torch.zeros(2, sizes[1], max(sizes[0], 1), dtype=torch.bool)
        for kind, links in enumerate((gold.sure, [*gold.sure, *gold.possible])):
            for source, target in links:
                is_gold[kind, target, source] = True
        targets = torch.arange(sizes[1])
        hits = [found & of_kind[targets, aligned.links.clamp_min(0)] for of_kind in is_gold]
        self.counts = self.counts + torch.stack([part.sum(-1) for part in (found, *hits)], -1)
        self.sure += len(set(gold.sure))
        self.pairs += 1

    def error_rates(self) -> Tensor:
        """AER of each    float64 [2, layers, heads + 1]: normal and shifted; the last head is the mean.

        Raises:
            ValueError: there is not one sure link.
        """
        if not self.sure:
            raise ValueError("there are no sure links to measure alignments by")
        links, sure, possible = self.counts.double().unbind(-1)
        return 1 - (sure + possible) / (links + self.sure)

    def of(self, head: AlignmentHead) -> dict[str, float]:
        """AER, precision |A ∩ P| / |A| and recall |A ∩ S| / |S| of one head."""
        place = int(head.shifted), head.layer, -1 if head.head is None else head.head
        links, sure_hits, possible_hits = self.counts[place].tolist()
        return {
            "aer": 1 - (sure_hits + possible_hits) / (links + self.sure),
            "precision": possible_hits / links if links else 1.0,
            "recall": sure_hits / self.sure if self.sure else 1.0,
        }

    def best(self) -> AlignmentHead:
        """Find the smallest AER; of equal ones normal before shifted, then the lower layer, then the mean."""
        rates = self.error_rates().roll(1, -1)  # the mean goes first
        shifted, layer, head = (int(place) for place in torch.unravel_index(rates.argmin(), rates.shape))
        return AlignmentHead(layer, head - 1 if head else None, bool(shifted))

    def error_rates_by_layer(self) -> dict[str, dict[str, list]]:
        """AER by layer: for normal and shifted attention of the mean of the heads, and of each head."""
        rates = self.error_rates()
        return {
            name: {"mean": kind[:, -1].tolist(), "heads": kind[:, :-1].tolist()}
            for name, kind in zip(("normal", "shifted"), rates, strict=True)
        }


def pharaoh_line(number: int, aligned: WordAlignments, links: Sequence[Link]) -> str:
    """As Moses and fast_align write it: `source-target`, counted from 0, a line for each pair."""
    return " ".join(f"{source}-{target}" for source, target in sorted(links)) + "\n"


def naacl_line(number: int, aligned: WordAlignments, links: Sequence[Link]) -> str:
    """As the shared task of NAACL 2003 has it: pair, source and target word, a line for each link, counted from 1."""
    return "".join(f"{number + 1} {source + 1} {target + 1}\n" for source, target in sorted(links))


def json_line(number: int, aligned: WordAlignments, links: Sequence[Link]) -> str:
    """A JSON object for each pair: its words, `alignment` as [source, target], and the `index_base` of these, 0."""
    values = {"source": aligned.source, "target": aligned.target, "alignment": sorted(links), "index_base": 0}
    return json.dumps(values, ensure_ascii=False) + "\n"


FORMATS = {"pharaoh": pharaoh_line, "naacl": naacl_line, "json": json_line}
