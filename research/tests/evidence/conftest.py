"""The published records and the recipes of all tables, which take seconds to read."""

from pathlib import Path

import pytest

from reluformers.training.recipe import Recipe
from reluformers_research.evidence import Evidence
from reluformers_research.tables import Table, list_tables


@pytest.fixture(scope="session")
def evidence() -> Evidence:
    return Evidence.load(Path(__file__).resolve().parents[2] / "records")


@pytest.fixture(scope="session")
def recipes() -> dict[tuple[str, str, str], Recipe]:
    """The recipe of every row, by the names of its table, its setting and itself."""
    return {
        (table.name, setting, row.name): table.recipe(setting, row, 1)
        for table in map(Table.load, list_tables())
        for setting in table.settings
        for row in table.rows_of(setting)
    }
