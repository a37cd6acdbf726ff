"""Rows that a function of ours reads, in tables, as `datasets` has those of its own readers.

The names of its own readers' files are patterns and URLs; ours are names. In a module of its own: `datasets` gives a
module with a reader other functions to open files by.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import pyarrow as pa
from datasets import ArrowBasedBuilder, BuilderConfig, DatasetInfo, Features, SplitGenerator
from datasets.builder import Key

_ROWS = 10_000  # A table holds so many rows.


@dataclass
class TablesConfig(BuilderConfig):
    """What makes the rows.

    Args:
        read: function that yields them as dicts.
        options: of that function; a list in it has an element for each shard.
        features: of the rows.
    """

    read: Callable[..., Iterator[dict[str, Any]]] | None = None
    options: dict[str, Any] = field(default_factory=dict)
    features: Features | None = None


class Tables(ArrowBasedBuilder):
    """Builder of one split, "data", with the rows of a function."""

    BUILDER_CONFIG_CLASS = TablesConfig

    def _info(self) -> DatasetInfo:
        return DatasetInfo(features=self.config.features)

    def _split_generators(self, dl_manager) -> list[SplitGenerator]:
        return [SplitGenerator(name="data", gen_kwargs=self.config.options)]

    def _generate_tables(self, **options) -> Iterator[tuple[Key, pa.Table]]:
        rows = iter(self.config.read(**options))
        schema = self.config.features.arrow_schema
        for number, first in enumerate(rows):
            yield Key(0, number), pa.Table.from_pylist([first, *islice(rows, _ROWS - 1)], schema=schema)
