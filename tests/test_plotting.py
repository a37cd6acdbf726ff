"""Training curves: what is drawn, formats, bad input."""

import xml.etree.ElementTree as ElementTree

import matplotlib.colors
import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from reluformers.plotting import plot_training_curves


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
    assert "nats" in loss.get_ylabel()
    assert "BLEU" in bleu.get_ylabel()
    assert loss.get_xlabel() == bleu.get_xlabel() == "updates"
    assert [text.get_text() for text in drawn[0].legends[0].get_texts()] == ["softmax", "relu"]
    assert [text.get_text() for text in loss.get_legend().get_texts()] == ["training loss", "evaluation loss"]
    picture = imread(path)
    assert picture.shape[0] > 400
    assert picture.shape[1] > 1200
    assert picture.std() > 0


def test_epochs_and_one_unnamed_run_without_bleu(tmp_path, drawn):
    plot_training_curves(log_history(bleu=False), tmp_path / "curves.png", x="epoch", title="Multi30k")
    (loss,) = drawn[0].axes
    assert curves(loss)[1] == ([1.0, 2.0], [3.0, 2.0])
    assert loss.get_xlabel() == "epochs"
    assert not drawn[0].legends
    assert drawn[0].get_suptitle() == "Multi30k"


def test_a_run_without_bleu_keeps_its_colour(tmp_path, drawn):
    runs = {"a": log_history(bleu=False), "b": log_history(1.0)}
    plot_training_curves(runs, tmp_path / "curves.png")
    loss, bleu = drawn[0].axes
    colours = [line.get_color() for line in loss.lines]
    assert colours[0] == colours[1] != colours[2] == colours[3]
    assert bleu.lines[-1].get_color() == colours[2]


def test_many_runs_differ_in_colour_or_dashes(tmp_path, drawn):
    plot_training_curves({f"run {number}": log_history(number) for number in range(20)}, tmp_path / "curves.png")
    bleu = drawn[0].axes[1]
    styles = {(matplotlib.colors.to_hex(line.get_color()), line.get_linestyle()) for line in bleu.lines}
    assert len(styles) == 20


def test_svg_is_whole_and_repeats(tmp_path):
    for name in ("a.svg", "b.svg"):
        plot_training_curves({"softmax": log_history()}, tmp_path / "new" / name)
    first, second = ((tmp_path / "new" / name).read_bytes() for name in ("a.svg", "b.svg"))
    assert ElementTree.fromstring(first).tag.endswith("svg")
    assert first == second


def test_infinite_and_missing_values_leave_gaps(tmp_path, drawn):
    log = [{"step": 1, "loss": 2.0}, {"step": 2, "loss": float("nan")}, {"step": 3, "loss": None}, {"loss": 4.0}]
    plot_training_curves({"diverged": log}, tmp_path / "curves.png")
    np.testing.assert_equal(curves(drawn[0].axes[0])[0], ([1, 2], [2.0, float("nan")]))


@pytest.mark.parametrize(
    ("runs", "name", "x", "message"),
    [
        ({"a": log_history()}, "curves.pdf", "step", r"\.pdf must end in one of .*\.png"),
        ({"a": log_history()}, "curves.png", "hours", "'hours' is not one of .*epoch"),
        ({"a": [], "b": [{"step": 1, "train_runtime": 1.0}]}, "curves.png", "step", r"\['a', 'b'\] has loss"),
        ({}, "curves.png", "step", "None of the runs"),
    ],
)
def test_bad_input_is_refused_and_nothing_is_written(tmp_path, runs, name, x, message):
    with pytest.raises(ValueError, match=message):
        plot_training_curves(runs, tmp_path / name, x=x)
    assert not list(tmp_path.iterdir())
