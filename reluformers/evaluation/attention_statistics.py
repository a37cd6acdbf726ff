"""How sparse, how empty and how spread out the attention of a model was, as it is written down."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from reluformers.data.checked_fields import build, check_mapping

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
    """Statistics of one attention site.

    Args:
        layers: of each layer, from the first.
        overall: of all of them.
        heads: of each head of each layer; empty where it was not written down.
    """

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
        """Read what `to_dict` gives.

        Raises:
            ValueError: a key is missing or not known, or a value has the wrong type.
        """
        parts = {site: check_mapping(f"attention.{site}", part) for site, part in values.items() if site != "overall"}
        sites = {}
        for site, part in parts.items():
            layers, heads = part.get("layers"), part.get("heads", [])
            if not isinstance(layers, list):
                raise ValueError(f"attention.{site}.layers is {layers!r}, but must be a list")
            if not isinstance(heads, list) or not all(isinstance(layer, list) for layer in heads):
                raise ValueError(f"attention.{site}.heads is {heads!r}, but must be a list of lists")
            sites[site] = SiteStatistics(
                _rows(f"attention.{site}.layers", layers),
                build(f"attention.{site}.overall", AttentionStatistics, part.get("overall")),
                [_rows(f"attention.{site}.heads[{number}]", layer) for number, layer in enumerate(heads)],
            )
        return cls(sites, build("attention.overall", AttentionStatistics, values.get("overall")))


def _rows(name: str, rows: list[Any]) -> list[AttentionStatistics]:
    return [build(f"{name}[{number}]", AttentionStatistics, row) for number, row in enumerate(rows)]
