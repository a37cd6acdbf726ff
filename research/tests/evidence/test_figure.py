"""The figure of a table: numbers on its axis, or rows side by side."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from reluformers_research.figure import plot_scores


@pytest.fixture
def drawn(monkeypatch):
    """The figures that were saved."""
    figures, savefig = [], Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda self, *args, **kw: (figures.append(self), savefig(self, *args, **kw))
    )
    return figures


def test_scores_of_a_figure_lie_over_its_numbers(tmp_path, drawn):
    scores = {"1024/relu": [25.0, 26.0], "64/relu": [20.0], "64/softmax": [18.0, 16.0], "1024/softmax": []}
    plot_scores(scores, tmp_path / "f.png", label="BLEU", x="width")
    (axes,) = drawn[0].axes
    lines = {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines}
    assert lines["relu"] == ([64, 1024], [20.0, 25.5])
    assert lines["softmax"] == ([64], [17.0])
    assert axes.get_xscale() == "log"
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("width", "BLEU")
    dots = [tuple(pair) for line in axes.lines for pair in np.asarray(line.get_xydata()).tolist()]
    assert {(1024, 25.0), (1024, 26.0), (64, 18.0), (64, 16.0)} <= set(dots)


def test_scores_of_a_table_stand_side_by_side(tmp_path, drawn):
    plot_scores({"128/softmax": [0.5, 0.7], "512/softmax": [0.4]}, tmp_path / "t.svg", label="accuracy", is_share=True)
    (axes,) = drawn[0].axes
    assert [text.get_text() for text in axes.get_xticklabels()] == ["128/softmax", "512/softmax"]
    assert axes.lines[0].get_linestyle() == "None"
    assert axes.get_legend() is None


def test_scores_that_are_not_there_are_refused(tmp_path):
    with pytest.raises(ValueError, match="No row"):
        plot_scores({"softmax": []}, tmp_path / "t.png", label="BLEU")
