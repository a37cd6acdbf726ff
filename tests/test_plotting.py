"""Training curves and confusion matrices: what is drawn."""

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from reluformers.evaluation.plotting import plot_confusion_matrix, plot_training_curves


def log_history(shift: float = 0.0, bleu: bool = True) -> list[dict]:
    """A log as the Trainer keeps it: training, evaluation and final entries."""
    log = []
    for step in range(10, 101, 10):
        log.append({"step": step, "epoch": step / 50, "loss": 5 - step / 50 + shift, "learning_rate": 1e-3})
        if step % 50 == 0:
            log.append({"step": step, "epoch": step / 50, "eval_loss": 4 - step / 50 + shift, "eval_runtime": 1.0})
            if bleu:
                log[-1]["eval_bleu"] = step / 10 - shift
    return [*log, {"step": 100, "epoch": 2.0, "train_loss": 3.0, "train_runtime": 9.0}]


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
    steps = list(range(10, 101, 10))
    assert curves(loss) == [
        (steps, [5 - step / 50 for step in steps]),
        ([50, 100], [3.0, 2.0]),
        (steps, [6 - step / 50 for step in steps]),
        ([50, 100], [4.0, 3.0]),
    ]
    assert curves(bleu) == [([50, 100], [5.0, 10.0]), ([50, 100], [4.0, 9.0])]
    assert imread(path).std() > 0


COUNTS = [[8, 2, 0], [1, 0, 99], [0, 0, 0]]
NAMES = ["cat", "dog", "a class with a name that is far too long for an axis"]


def test_confusion_matrix_shows_counts_shares_and_names(tmp_path, drawn):
    path = plot_confusion_matrix(COUNTS, NAMES, tmp_path / "confusion.png", title="test")
    axes, _ = drawn[0].axes
    shares = axes.images[0].get_array()
    np.testing.assert_allclose(shares[:2], [[0.8, 0.2, 0], [0.01, 0, 0.99]])
    assert shares.mask[2].all()  # a class without images has no shares
    assert not shares.mask[:2].any()
    assert axes.images[0].get_clim() == (0, 1)
    numbers = {text.get_position(): text.get_text() for text in axes.texts}
    assert numbers == {(0, 0): "8", (1, 0): "2", (0, 1): "1", (2, 1): "99"}  # (column, row), none where it is 0
    assert imread(path).std() > 0
