"""Training curves and confusion matrices: what is drawn."""

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from reluformers.evaluation.plotting import plot_confusion_matrix, plot_training_curves


def log_history(shift: float = 0.0) -> list[dict]:
    """A log as the Trainer keeps it: training, evaluation and final entries."""
    log = []
    for step in (50, 100):
        log.append({"step": step, "epoch": step / 50, "loss": 5 - step / 50 + shift, "learning_rate": 1e-3})
        log.append(
            {"step": step, "epoch": step / 50, "eval_loss": 4 - step / 50 + shift, "eval_bleu": step / 10 - shift}
        )
    return [*log, {"step": 100, "train_loss": 3.0, "train_runtime": 9.0}]


@pytest.fixture
def drawn(monkeypatch):
    """The figures that were saved."""
    figures, savefig = [], Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda self, *args, **kw: (figures.append(self), savefig(self, *args, **kw))
    )
    return figures


def curves(axes) -> list[tuple[list, list]]:
    return [(np.asarray(line.get_xdata()).tolist(), np.asarray(line.get_ydata()).tolist()) for line in axes.lines]


def test_losses_and_bleu_of_two_runs(tmp_path, drawn):
    path = plot_training_curves({"softmax": log_history(), "relu": log_history(1.0)}, tmp_path / "curves.png")
    loss, bleu = drawn[0].axes
    steps = [50, 100]
    assert curves(loss) == [(steps, [4, 3]), (steps, [3, 2]), (steps, [5, 4]), (steps, [4, 3])]
    assert curves(bleu) == [(steps, [5, 10]), (steps, [4, 9])]
    assert imread(path).std() > 0


COUNTS = [[8, 2, 0], [1, 0, 99], [0, 0, 0]]
NAMES = ["cat", "dog", "a class with a name that is far too long for an axis"]


def test_confusion_matrix_shows_counts_shares_and_names(tmp_path, drawn):
    plot_confusion_matrix(COUNTS, NAMES, tmp_path / "confusion.png", title="test")
    axes, _ = drawn[0].axes
    shares = axes.images[0].get_array()
    np.testing.assert_allclose(shares[:2], [[0.8, 0.2, 0], [0.01, 0, 0.99]])
    assert shares.mask[2].all()  # a class without images has no shares
    numbers = {text.get_position(): text.get_text() for text in axes.texts}
    assert numbers == {(0, 0): "8", (1, 0): "2", (0, 1): "1", (2, 1): "99"}  # (column, row), none where it is 0
