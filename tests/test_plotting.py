"""Training curves and confusion matrices: what is drawn, formats, bad input."""

import xml.etree.ElementTree as ElementTree
from itertools import pairwise

import matplotlib.colors
import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from builders.finished_runs import attention_statistics
from reluformers.evaluation.attention_statistics import AttentionReport
from reluformers.evaluation.plotting import (
    plot_attention_report,
    plot_confusion_matrix,
    plot_training_curves,
)


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
    plot_training_curves(log_history(bleu=False), tmp_path / "curves.png", x="epoch")
    (loss,) = drawn[0].axes
    assert curves(loss)[1] == ([1.0, 2.0], [3.0, 2.0])
    assert loss.get_xlabel() == "epochs"
    assert not drawn[0].legends


def test_a_run_without_bleu_keeps_its_colour(tmp_path, drawn):
    runs = {"a": log_history(bleu=False), "b": log_history(1.0)}
    plot_training_curves(runs, tmp_path / "curves.png")
    loss, bleu = drawn[0].axes
    colours = [line.get_color() for line in loss.lines]
    assert colours[0] == colours[1] != colours[2] == colours[3]
    assert bleu.lines[-1].get_color() == colours[2]


def test_accuracy_takes_the_place_of_bleu(tmp_path, drawn):
    log = [{"step": 10, "loss": 2.0}, {"step": 20, "eval_loss": 1.5, "eval_accuracy": 0.25}]
    log.append({"step": 40, "eval_loss": 1.0, "eval_accuracy": 0.75})
    plot_training_curves({"relu-vit": log}, tmp_path / "curves.png")
    loss, accuracy = drawn[0].axes
    assert curves(loss) == [([10], [2.0]), ([20, 40], [1.5, 1.0])]
    assert curves(accuracy) == [([20, 40], [0.25, 0.75])]
    assert accuracy.get_ylabel() == "evaluation accuracy"
    assert {label.get_text()[-1] for label in accuracy.get_yticklabels()} == {"%"}


def test_many_runs_differ_in_colour_or_marker(tmp_path, drawn):
    plot_training_curves({f"run {number}": log_history(number) for number in range(20)}, tmp_path / "curves.png")
    bleu = drawn[0].axes[1]
    styles = {(matplotlib.colors.to_hex(line.get_color()), line.get_marker()) for line in bleu.lines}
    assert len(styles) == 20
    assert len({line.get_marker() for line in bleu.lines[:8]}) == 8  # without colour too


def test_training_loss_is_smoothed_and_told_from_evaluation_loss(tmp_path, drawn):
    values = [8.0 - step / 10 + (-1) ** step for step in range(40)]
    log = [{"step": step, "loss": value} for step, value in enumerate(values)]
    plot_training_curves({"a": [*log, {"step": 39, "eval_loss": 3.0}]}, tmp_path / "curves.png")
    training, evaluation = drawn[0].axes[0].lines
    shown = np.asarray(training.get_ydata())
    assert (shown[0], shown[-1]) == (values[0], values[-1])
    np.testing.assert_allclose(shown[4], np.mean(values[:9]))
    assert np.abs(np.diff(shown[5:-5])).max() < 0.5 < np.abs(np.diff(values)).min()
    assert training.get_marker() == ""
    assert evaluation.get_marker() == "o"
    assert training.get_linestyle() != evaluation.get_linestyle()
    labels = [text.get_text() for text in drawn[0].axes[0].get_legend().get_texts()]
    assert labels == ["training loss, running mean", "evaluation loss"]


def test_a_gap_in_a_long_log_stays_one(tmp_path, drawn):
    log = [{"step": step, "loss": float("nan") if step == 20 else 2.0} for step in range(40)]
    plot_training_curves(log, tmp_path / "curves.png")
    (line,) = drawn[0].axes[0].lines
    np.testing.assert_array_equal(line.get_ydata(), [entry["loss"] for entry in log])


def test_no_legend_names_what_is_not_drawn(tmp_path, drawn):
    only_trained = [{"step": step, "loss": 5.0 - step} for step in range(4)]
    plot_training_curves({"a": only_trained, "empty": [{"step": 1, "train_runtime": 1.0}]}, tmp_path / "curves.png")
    (loss,) = drawn[0].axes
    assert len(loss.lines) == 1
    assert [text.get_text() for text in loss.get_legend().get_texts()] == ["training loss"]
    assert [text.get_text() for text in drawn[0].legends[0].get_texts()] == ["a"]


def test_sites_that_lie_on_each_other_are_all_seen(tmp_path, drawn):
    report = AttentionReport.from_dict(attention_statistics(0.0, "encoder", "decoder", "cross"))
    plot_attention_report(report, tmp_path / "attention.png")
    lines = drawn[0].axes[0].lines
    assert len({line.get_marker() for line in lines}) == 3
    assert all(line.get_markerfacecolor() == "none" for line in lines)
    sizes = [line.get_markersize() for line in lines]
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == 3


def test_an_entropy_that_is_nowhere_known_leaves_an_empty_panel(tmp_path, drawn):
    statistics = attention_statistics(0.0, "encoder")
    for row in statistics["encoder"]["layers"]:
        row["entropy"] = None
    plot_attention_report(AttentionReport.from_dict(statistics), tmp_path / "attention.png")
    bottom, top = drawn[0].axes[2].get_ylim()
    assert (bottom, top > 0) == (0, True)


def test_no_accuracy_axis_goes_beyond_all(tmp_path, drawn):
    plot_training_curves([{"step": step, "eval_accuracy": 1.0} for step in (1, 2)], tmp_path / "curves.png")
    assert drawn[0].axes[0].get_ylim()[1] <= 1.01


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
    ("runs", "name"),
    [
        ({"a": log_history()}, "curves.pdf"),
        ({"a": [], "b": [{"step": 1, "train_runtime": 1.0}]}, "curves.png"),
        ({}, "curves.png"),
    ],
)
def test_bad_input_is_refused_and_nothing_is_written(tmp_path, runs, name):
    with pytest.raises(ValueError, match=r"\.pdf|runs"):
        plot_training_curves(runs, tmp_path / name)
    assert not list(tmp_path.iterdir())


COUNTS = [[8, 2, 0], [1, 0, 99], [0, 0, 0]]
NAMES = ["cat", "dog", "a class with a name that is far too long for an axis"]


def test_confusion_matrix_shows_counts_shares_and_names(tmp_path, drawn):
    path = plot_confusion_matrix(COUNTS, NAMES, tmp_path / "confusion.png", title="test")
    axes, bar = drawn[0].axes
    shares = axes.images[0].get_array()
    np.testing.assert_allclose(shares[:2], [[0.8, 0.2, 0], [0.01, 0, 0.99]])
    assert shares.mask[2].all()  # a class without images has no shares
    assert not shares.mask[:2].any()
    assert axes.images[0].get_clim() == (0, 1)
    numbers = {text.get_position(): text.get_text() for text in axes.texts}
    assert numbers == {(0, 0): "8", (1, 0): "2", (0, 1): "1", (2, 1): "99"}  # (column, row), none where it is 0
    for labels in (axes.get_xticklabels(), axes.get_yticklabels()):
        assert [label.get_text() for label in labels] == ["cat", "dog", "a class with a name tha…"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("predicted class", "true class")
    assert "true class" in bar.get_ylabel()
    assert drawn[0].get_suptitle() == "test"
    assert imread(path).std() > 0


@pytest.mark.parametrize(("classes", "is_numbered"), [(1, True), (2, True), (20, True), (21, False), (100, False)])
def test_labels_of_a_confusion_matrix_do_not_touch(tmp_path, drawn, classes, is_numbered):
    names = [f"class {number}" for number in range(classes)]
    plot_confusion_matrix(np.full((classes, classes), 1000), names, tmp_path / "confusion.svg")
    axes = drawn[0].axes[0]
    assert len(axes.texts) == (classes**2 if is_numbered else 0)
    assert [label.get_text() for label in axes.get_yticklabels()] == names
    for labels in (axes.get_xticklabels(), axes.get_yticklabels(), axes.texts[:classes]):
        boxes = [label.get_window_extent() for label in labels]
        assert not any(one.overlaps(next_one) for one, next_one in pairwise(boxes))


def test_very_many_classes_are_labelled_in_part(tmp_path, drawn):
    plot_confusion_matrix(np.eye(300, dtype=int), [f"class {number}" for number in range(300)], tmp_path / "c.png")
    labels = drawn[0].axes[0].get_yticklabels()
    assert [label.get_text() for label in labels] == [f"class {number}" for number in range(0, 300, 3)]
    assert max(drawn[0].get_size_inches()) < 20
