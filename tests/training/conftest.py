"""Runs of a few updates, without what takes longer than they do."""

import pytest

from reluformers.training import run


@pytest.fixture(scope="module", autouse=True)
def no_curves():
    """Each picture of the log takes a third of a second; other folders' tests draw them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "plot_training_curves", lambda log, path: None)
        yield
