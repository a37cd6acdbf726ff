"""Pictures of attention: exact zeros are white, whatever is not zero has a colour, null rows are hatched."""

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Patch, Rectangle
from models import AttentionMap, PatchMap

TOKENS_DRAWN = 60
CELL = 0.28  # inches
MASKED_COLOUR, GRID_COLOUR = "0.86", "0.93"
NULL_STYLE = {"facecolor": "#f6d5c9", "edgecolor": "#b5532c", "hatch": "////", "linewidth": 0}
NULL_TEXT_COLOUR = "#b5532c"


def draw_attention(attention: AttentionMap) -> Figure:
    """Draw the weights of one head with its tokens, at most `TOKENS_DRAWN` of each side.

    Args:
        attention: weights and tokens.

    Returns:
        A figure of its own, which pyplot does not know.
    """
    rows, columns = (min(length, TOKENS_DRAWN) for length in attention.weights.shape)
    weights, visible = attention.weights[:rows, :columns], attention.visible[:rows, :columns]
    null_rows = np.flatnonzero((np.where(attention.visible, attention.weights, 0) == 0).all(1)[:rows])
    figure = Figure(figsize=(max(columns * CELL + 3.2, 4.6), rows * CELL + 3.0), layout="constrained")
    axes = figure.subplots()
    bar = figure.colorbar(_paint(axes, weights, visible), ax=axes, shrink=0.8, label="weight")
    bar.outline.set_visible(False)
    for row in null_rows:
        axes.add_patch(Rectangle((-0.5, row - 0.5), columns, 1, **NULL_STYLE))
    _label(axes, attention, rows, columns, null_rows)
    figure.legend(handles=_legend(len(null_rows), not visible.all()), loc="outside lower left", frameon=False)
    cut = [f"{drawn} of {all_}" for drawn, all_ in zip((rows, columns), attention.weights.shape, strict=True)]
    if (rows, columns) != attention.weights.shape:
        axes.set_title(f"the first {cut[0]} rows and {cut[1]} columns", fontsize=9)
    return figure


def draw_patches(patches: PatchMap) -> Figure:
    """Draw a picture and, beside it, the weights of its patches.

    Args:
        patches: weights and picture.

    Returns:
        A figure of its own, which pyplot does not know.
    """
    rows, columns = patches.weights.shape
    figure = Figure(figsize=(9, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.imshow(patches.picture)
    left.set_title("the image as the model sees it", fontsize=9)
    left.set_axis_off()
    bar = figure.colorbar(
        _paint(right, patches.weights, np.ones((rows, columns), dtype=bool)), ax=right, label="weight"
    )
    bar.outline.set_visible(False)
    right.set_title(patches.title, fontsize=9)
    right.set_xticks([])
    right.set_yticks([])
    is_null = not patches.weights.any()
    if is_null:
        right.add_patch(Rectangle((-0.5, -0.5), columns, rows, **NULL_STYLE))
    figure.legend(handles=_legend(int(is_null), False), loc="outside lower right", frameon=False, ncols=2)
    return figure


def _paint(axes: Axes, weights: np.ndarray, visible: np.ndarray) -> AxesImage:
    """Cells of what is not exactly zero; masked ones are grey."""
    shown = np.ma.masked_where((weights == 0) | ~visible, weights)
    largest = float(abs(shown).max()) if shown.count() else 1.0
    blues = colormaps["Blues"](np.linspace(0.2, 1, 128))  # the smallest weight is told from zero
    reds = colormaps["Reds"](np.linspace(1, 0.2, 128))
    is_signed = bool(shown.count() and shown.min() < 0)
    colours = ListedColormap(np.vstack([reds, blues]) if is_signed else blues).with_extremes(bad=(0, 0, 0, 0))
    axes.set_facecolor("white")
    axes.imshow(np.ma.masked_where(visible, visible), cmap=ListedColormap([MASKED_COLOUR]), aspect="equal")
    axes.set_xticks(np.arange(-0.5, weights.shape[1]), minor=True)
    axes.set_yticks(np.arange(-0.5, weights.shape[0]), minor=True)
    axes.grid(which="minor", color=GRID_COLOUR, linewidth=0.6)
    axes.tick_params(which="both", length=0)
    axes.spines[:].set_color("0.7")
    return axes.imshow(
        shown, cmap=colours, vmin=-largest if is_signed else 0, vmax=largest, interpolation="nearest", aspect="equal"
    )


def _label(axes: Axes, attention: AttentionMap, rows: int, columns: int, null_rows: np.ndarray) -> None:
    """Tokens on both axes, as they are: a $ begins no formula. Null rows carry a sign."""
    queries = [f"{token} ∅" if row in null_rows else token for row, token in enumerate(attention.queries[:rows])]
    # set as text, because as strings among the ticks they would be read for formulas
    axes.set_xticks(range(columns), attention.keys[:columns], rotation=90, fontsize=9, parse_math=False)
    axes.set_yticks(range(rows), queries, fontsize=9, parse_math=False)
    for row in null_rows:
        axes.get_yticklabels()[row].set_color(NULL_TEXT_COLOUR)
    axes.set_ylabel(attention.axis_names[0])
    axes.set_xlabel(attention.axis_names[1])


def _legend(null_rows: int, is_masked: bool) -> list[Patch]:
    """What the colours mean that are none of the colour bar's."""
    handles = [Patch(facecolor="white", edgecolor="0.7", label="exactly zero")]
    if null_rows:
        handles.append(Patch(**NULL_STYLE, label=f"∅ null row: all its weights are zero ({null_rows})"))
    if is_masked:
        handles.append(Patch(facecolor=MASKED_COLOUR, label="not visible (yet to come)"))
    return handles
