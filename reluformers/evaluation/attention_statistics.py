"""How sparse, how empty and how spread out the attention of a model was, as it is written down."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

MISSING = "–"  # in a cell, what is not known
SITE_NAMES = {"encoder": "encoder", "decoder": "decoder", "cross": "cross-attention", "pooling": "pooling query"}


@dataclass
class AttentionStatistics:
    """How sparse, empty and spread out attention rows are.

    Args:
        zeros: share of weights that are exactly 0 among the visible pairs, in [0, 1].
        null_rate: share of rows without any weight, in [0, 1].
        entropy: mean over the other rows, in nats; None if there is none.
        row_sum: mean sum of a row.
        rows: number of query rows times heads.
    """

    zeros: float
    null_rate: float
    entropy: float | None
    row_sum: float
    rows: int

    def cells(self) -> dict[str, str]:
        """Column → text."""
        return {
            "zeros": f"{self.zeros:.1%}",
            "null rows": f"{self.null_rate:.1%}",
            "entropy": MISSING if self.entropy is None else f"{self.entropy:.2f}",
            "row sum": f"{self.row_sum:.2f}",
        }


@dataclass
class SiteStatistics:
    """Statistics of one attention site: of each layer, of all of them, and of each head of each layer if known."""

    layers: list[AttentionStatistics]
    overall: AttentionStatistics
    heads: list[list[AttentionStatistics]] = field(default_factory=list)


@dataclass
class AttentionReport:
    """Statistics of a model's attention.

    Args:
        sites: "encoder", "decoder", "cross", "pooling", as far as the model has them → statistics.
        overall: of all sites.
    """

    sites: dict[str, SiteStatistics]
    overall: AttentionStatistics

    def to_dict(self) -> dict[str, Any]:
        """The report as it is written: sites, and beside them `overall`."""
        return {**{site: asdict(part) for site, part in self.sites.items()}, "overall": asdict(self.overall)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "AttentionReport":
        """Read what `to_dict` gives; a key that is missing or not known is a KeyError or TypeError."""
        sites = {
            site: SiteStatistics(
                [AttentionStatistics(**layer) for layer in part["layers"]],
                AttentionStatistics(**part["overall"]),
                [[AttentionStatistics(**head) for head in layer] for layer in part.get("heads", [])],
            )
            for site, part in values.items()
            if site != "overall"
        }
        return cls(sites, AttentionStatistics(**values["overall"]))
