"""Pictures of training runs."""

from collections.abc import Mapping, Sequence
from math import ceil
from pathlib import Path

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from .files import atomic_write

# Okabe and Ito 2008: eight colours that colour-blind readers tell apart; without yellow, which is faint on white
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_FORMATS = (".png", ".svg")
_X_LABELS = {"step": "updates", "epoch": "epochs"}

_Y_LABELS = {"eval_loss": "loss (nats per token)", "eval_bleu": "evaluation BLEU"}
_LINE_NAMES = {"loss": "training loss", "eval_loss": "evaluation loss"}
_LINES = {
    "loss": {"linewidth": 0.9, "alpha": 0.75},
    "eval_loss": {"linewidth": 2.0, "marker": "o", "markersize": 4},
    "eval_bleu": {"linewidth": 2.0, "marker": "o", "markersize": 4},
}
_DASHES = ("-", "--", ":", "-.")

LogHistory = Sequence[Mapping[str, float]]


def plot_training_curves(
    runs: Mapping[str, LogHistory] | LogHistory, path: str | Path, *, x: str = "step", title: str | None = None
) -> Path:
    """Draw the losses and, where it was measured, the BLEU of one or several runs.

    The training loss is thin, the evaluation loss thick with markers; a run has one colour in both panels. Of our
    models the training loss holds label smoothing and the regulariser as well, the evaluation loss does not.

    Args:
        runs: {name: log history} or one log history, as in `trainer.state.log_history` or `trainer_state.json`:
            dicts with `step`, `epoch` and some of `loss`, `eval_loss` (nats per token), `eval_bleu` (0 to 100).
        path: picture to write, .png or .svg.
        x: "step" or "epoch".
        title: text above the picture.

    Returns:
        The path of the picture.

    Raises:
        ValueError: the suffix or `x` is not allowed, or no run has anything to draw.
    """
    path = Path(path)
    if path.suffix not in _FORMATS:
        raise ValueError(f"The picture {path} must end in one of {list(_FORMATS)}.")
    if x not in _X_LABELS:
        raise ValueError(f"x={x!r} is not one of {list(_X_LABELS)}.")
    runs = runs if isinstance(runs, Mapping) else {"": runs}
    panels = [
        keys
        for keys in (("loss", "eval_loss"), ("eval_bleu",))
        if any(_points(log, key, x)[0] for log in runs.values() for key in keys)
    ]
    if not panels:
        raise ValueError(f"None of the runs {list(runs)} has loss, eval_loss or eval_bleu at some {x} in its log.")
    width = 5.5 * len(panels)
    columns = max(1, int(width / (0.6 + 0.09 * max(map(len, runs)))))  # inches of a line sample and of its name
    figure = Figure(figsize=(width, 3.6 + 0.22 * ceil(len(runs) / columns)), layout="constrained")
    for axes, keys in zip(figure.subplots(1, len(panels), sharex=True, squeeze=False)[0], panels, strict=True):
        _draw_panel(axes, runs, keys, x)
    if title:
        figure.suptitle(title)
    names = [Line2D([], [], **_style(number), linewidth=2.5, label=name) for number, name in enumerate(runs) if name]
    if names:
        figure.legend(handles=names, loc="outside lower center", ncols=min(len(names), columns), frameon=False)
    # no date in an SVG, so that the same runs give the same picture
    metadata = {"Date": None} if path.suffix == ".svg" else None
    with atomic_write(path) as temporary, rc_context({"svg.hashsalt": "reluformers"}):
        figure.savefig(temporary, format=path.suffix[1:], dpi=150, metadata=metadata)
    return path


def _points(log: LogHistory, key: str, x: str) -> tuple[list[float], list[float]]:
    """Return the positions and values of one key of a log."""
    entries = [entry for entry in log if entry.get(key) is not None and entry.get(x) is not None]
    return [entry[x] for entry in entries], [entry[key] for entry in entries]


def _style(number: int) -> dict[str, str]:
    """Return colour and dashes of a run; dashes tell runs apart once the colours are used up."""
    return {
        "color": _COLOURS[number % len(_COLOURS)],
        "linestyle": _DASHES[number // len(_COLOURS) % len(_DASHES)],
    }


def _draw_panel(axes: Axes, runs: Mapping[str, LogHistory], keys: Sequence[str], x: str) -> None:
    """Draw some keys of all runs into one panel."""
    for number, log in enumerate(runs.values()):
        for key in keys:
            axes.plot(*_points(log, key, x), **_style(number), **_LINES[key])
    if len(keys) > 1:
        axes.legend(
            handles=[Line2D([], [], color="0.35", label=_LINE_NAMES[key], **_LINES[key]) for key in keys],
            frameon=False,
        )
    axes.set_xlabel(_X_LABELS[x])
    axes.set_ylabel(_Y_LABELS[keys[-1]])
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.margins(x=0.02)
