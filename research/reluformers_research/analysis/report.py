"""The page that shows what `reluformers analyse` has measured: one HTML file that needs nothing else."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from statistics import fmean
from typing import Any

from jinja2 import Environment, StrictUndefined
from matplotlib.ticker import MaxNLocator

from reluformers.evaluation.attention_statistics import MISSING, SITE_NAMES

from .tokens import CLASSES

WIDTH, HEIGHT = 300, 170  # of a chart, in units of its view box
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 10, 8, 24

Analysis = Mapping[str, Any]
Lines = dict[tuple[str, bool], dict[float, float]]  # model, dashed → x → y


def percent(value: float) -> str:
    """A share in percent."""
    return f"{100 * value:.0f} %" if value in (0, 1) or value >= 0.1 else f"{100 * value:.2g} %"


def plain(value: float) -> str:
    """A number with three digits."""
    return f"{value:.3g}"


@dataclass(frozen=True)
class Section:
    """A question, what a reader has to know to read the answer, and the statistics that give it.

    Args:
        title, text: of the section; each line of the text is a paragraph.
        lines: statistics that go through the layers, name → what it is called.
        dashed: name in `lines` → statistic that is drawn dashed beside it.
        heads: statistics that are shown for each head.
        curves: statistics with a number in their name, such as "top_share" → what is shown by what.
        classes: statistics with a class of tokens in their name → one that is the mark beside it, or "".
    """

    title: str
    text: str
    lines: Mapping[str, str]
    dashed: Mapping[str, str]
    heads: Sequence[str] = ()
    curves: Mapping[str, str] | None = None
    classes: Mapping[str, str] | None = None


SECTIONS = (
    Section(
        "How many weights are exactly zero?",
        "A head gives every query (a word, or a patch of an image) a row of weights, one for each key it may look at. "
        "Softmax never gives a zero, so everything leaks in a little; rectified and sparse attention can leave a key "
        "out altogether. Shown is the share of zeros.",
        {"zeros": "zero weights"},
        {},
        heads=("zeros",),
    ),
    Section(
        "Which heads attend to nothing?",
        "A row of zeros alone is a null row: the head adds nothing for this query. Only attention that does not force "
        "rows to sum to 1 can do so. The authors of ReLA saw heads specialise by it: silent nearly always, but not "
        "after a comma, say, or a verb.\n"
        "Dashed: every source beside the translation of another one. If cross-attention finds less to look at there, "
        "its null rate tells wrong pairs from right ones.",
        {"null_rate": "null rows", "null_rate.variance": "variance of the null rate over heads"},
        {"null_rate": "null_rate.shuffled"},
        heads=("null_rate",),
        classes={"null_rate": ""},
    ),
    Section(
        "How focused is a row?",
        "Entropy is 0 when a row has one weight and log n when it has n equal ones (in nats). Below, the share of the "
        "weight that the largest few percent of the keys get: the higher, the more it is centred on them. Null rows "
        "are left out.",
        {"entropy": "entropy in nats"},
        {},
        heads=("entropy",),
        curves={"top_share": "share of the weight on the largest % of the keys"},
    ),
    Section(
        "How much weight does a row give in all?",
        "1 for softmax. Weights that nothing normalises add up to less where little fits, and perhaps to more where "
        "rivals compete. Below, at words (or images) that the model gets right (full) and at those that it gets wrong "
        "(dashed), each word given the reference so far.",
        {
            "row_sum": "sum of a row",
            "row_sum.right": "sum, right and wrong",
            "entropy.right": "entropy, right and wrong",
        },
        {"row_sum.right": "row_sum.wrong", "entropy.right": "entropy.wrong"},
        heads=("row_sum",),
    ),
    Section(
        "Where does the weight go?",
        "Softmax heads with nothing to do park their weight somewhere, often on the first token: a sink. Distance is "
        "how far away the keys are that a query attends to, in tokens, or in patches of an image.",
        {"sink": "share of the first key", "distance": "distance"},
        {},
        heads=("sink", "distance"),
    ),
    Section(
        "What do punctuation and stop words get?",
        "The bars are the share of the weight on a class of tokens; the mark is what it would be if all keys got the "
        "same. Stop words are the most frequent words of these texts.",
        {},
        {},
        classes={"mass": "keys"},
    ),
    Section(
        "Do the heads of a layer do different things?",
        "Jensen–Shannon divergence between the heads of a layer: 0 if all give the same weights, log H if H heads "
        "have nothing in common. A null row counts as looking at a key of its own. Below, for weights that do not sum "
        "to 1, as ReLA renormalises them, by its temperature τ.",
        {"head_diversity": "divergence in nats"},
        {},
        curves={"head_diversity": "divergence in nats by temperature τ"},
    ),
    Section(
        "Does the output grow with the length?",
        "The variance of what attention returns, before any norm, against the number n of keys that a query sees. Of "
        "plain ReLU weights it grows like n/2, which is why ReLUFormer divides them by √(n/2).",
        {},
        {},
        curves={"output_variance": "variance by the number of visible keys, each up to the next"},
    ),
    Section(
        "What do the feed-forward networks do?",
        "They can be read as a memory, whose values the inner states weigh. The variance ratio is that of what they "
        "return to what it is added to: near 0 they are drowned. Anisotropy is the mean cosine of two values: near 0 "
        "they differ. Below, the share of all inner states that the largest few percent have.",
        {"ffn_variance_ratio": "variance ratio", "ffn_anisotropy": "anisotropy of the values"},
        {},
        curves={"ffn_top_share": "share of the largest % of the slots"},
    ),
    Section(
        "What was learned beside the weights?",
        "Scale g of cosine scores, exponent α of the length, threshold θ; and how near cosines come to their bound of "
        "1, where only a larger g could sharpen a row.",
        {
            "scale": "scale g",
            "length_exponent": "exponent α",
            "threshold": "threshold θ",
            "cosine_max": "largest cosine of a row",
            "cosine_saturated": "cosines of 0.9 and more",
        },
        {},
        heads=("cosine_max",),
    ),
)
NAMES = {
    "zeros": "zero weights", "null_rate": "null rows", "entropy": "entropy", "row_sum": "sum of a row",
    "sink": "share of the first key", "distance": "distance", "cosine_max": "largest cosine",
    "mass": "share of the weight",
}  # fmt: skip
_GLANCE = {
    "zeros": "zero weights", "null_rate": "null rows", "null_rate.shuffled": "null rows, wrong pairs",
    "entropy": "entropy", "row_sum": "row sum", "sink": "on the first key", "accuracy": "right answers",
}  # fmt: skip
_SHARES = {
    "zeros", "null_rate", "null_rate.shuffled", "sink", "accuracy", "top_share", "ffn_top_share", "cosine_saturated",
}  # fmt: skip


def render_report(analysis: Analysis) -> str:
    """The page of an analysis.

    Args:
        analysis: what `reluformers analyse` writes as JSON: `task`, `data`, `circumstances`, and in `models` the name
            of each model → what `analyse_model` returns.
    """
    models = list(analysis["models"])
    shown = [drawn for section in SECTIONS if (drawn := _draw(section, analysis["models"]))["has_content"]]
    environment = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, autoescape=True)
    template = environment.from_string((files(__package__) / "report.html").read_text(encoding="utf-8"))
    return template.render(
        analysis=analysis,
        models=models,
        glance=_glance(analysis["models"]),
        sections=shown,
        site_names=SITE_NAMES,
        size=(WIDTH, HEIGHT),
        plot=(_LEFT, _TOP, WIDTH - _RIGHT, HEIGHT - _BOTTOM),
        percent=percent,
    )


def _glance(models: Analysis) -> dict[str, Any]:
    """Columns and rows of the first table, means over sites and layers."""
    rows = {
        name: {key: _mean_over_layers(results["statistics"].get(key, {})) for key in _GLANCE}
        for name, results in models.items()
    }
    keys = [key for key in _GLANCE if any(row[key] is not None for row in rows.values())]
    return {
        "columns": [_GLANCE[key] for key in keys],
        "rows": {
            name: [MISSING if row[key] is None else _text_of(key)(row[key]) for key in keys]
            for name, row in rows.items()
        },
    }


def _text_of(name: str) -> Callable[[float], str]:
    """How values of a statistic are written."""
    return percent if name in _SHARES else plain


def _mean_over_layers(sites: Mapping[str, Any]) -> float | None:
    known = [layer["overall"] for layers in sites.values() for layer in layers if layer["overall"] is not None]
    return fmean(known) if known else None


def _draw(section: Section, models: Analysis) -> dict[str, Any]:
    """What the template needs of a section."""
    lines = []
    for name, title in section.lines.items():
        dashed = section.dashed.get(name)
        charts = _charts(
            lambda site, name=name, dashed=dashed: _layer_lines(models, name, dashed, site), _text_of(name)
        )
        if charts:
            lines.append({"title": f"{title}, by layer", "charts": charts})
    for prefix, title in (section.curves or {}).items():
        charts = _charts(lambda site, prefix=prefix: _curves(models, prefix, site), _text_of(prefix))
        if charts:
            lines.append({"title": f"{title} (mean over layers)", "charts": charts})
    heads = [_head_tables(models, name) for name in section.heads]
    classes = [_class_bars(models, prefix, mark) for prefix, mark in (section.classes or {}).items()]
    heads, classes = ([part for part in parts if part] for parts in (heads, classes))
    return {
        "title": section.title,
        "paragraphs": section.text.split("\n"),
        "lines": lines,
        "heads": heads,
        "classes": classes,
        "has_content": bool(lines or heads or classes),
    }


def _layer_lines(models: Analysis, name: str, dashed: str | None, site: str) -> Lines:
    lines = {}
    for model, results in models.items():
        for statistic in filter(None, (name, dashed)):
            layers = results["statistics"].get(statistic, {}).get(site, [])
            points = {
                float(number): layer["overall"]
                for number, layer in enumerate(layers, start=1)
                if layer["overall"] is not None
            }
            lines[model, statistic != name] = points
    return lines


def _curves(models: Analysis, prefix: str, site: str) -> Lines:
    lines = {}
    for model, results in models.items():
        numbered = {
            float(name.removeprefix(f"{prefix}.")): sites.get(site, [])
            for name, sites in results["statistics"].items()
            if name.startswith(f"{prefix}.")
        }
        means = {number: _mean_over_layers({site: layers}) for number, layers in sorted(numbered.items())}
        lines[model, False] = {number: value for number, value in means.items() if value is not None}
    return lines


def _charts(lines_of: Callable[[str], Lines], text_of: Callable[[float], str]) -> list[dict[str, Any]]:
    """A chart for each site that has a line, all with the same vertical axis."""
    found = {site: lines for site in SITE_NAMES if any((lines := lines_of(site)).values())}
    if not found:
        return []
    values = [value for lines in found.values() for points in lines.values() for value in points.values()]
    low, high = min(0.0, *values), max(values)
    ticks = MaxNLocator(nbins=4, steps=[1, 2, 5, 10]).tick_values(low, high if high > low else low + 1)
    bottom, top = float(ticks[0]), float(ticks[-1])

    def height(value: float) -> float:
        return round(HEIGHT - _BOTTOM - (value - bottom) / (top - bottom) * (HEIGHT - _BOTTOM - _TOP), 1)

    charts = []
    for site, lines in found.items():
        numbers = sorted({number for points in lines.values() for number in points})
        step = (WIDTH - _LEFT - _RIGHT) / max(len(numbers), 1)
        across = {number: round(_LEFT + step * (place + 0.5), 1) for place, number in enumerate(numbers)}
        charts.append(
            {
                "site": SITE_NAMES[site],
                "x": [(x, f"{number:g}") for number, x in across.items()],
                "y": [(height(float(tick)), text_of(float(tick) + 0.0)) for tick in ticks],
                "lines": [
                    {
                        "model": model,
                        "dashed": dashed,
                        "points": [(across[x], height(y), f"{x:g}: {text_of(y)}") for x, y in points.items()],
                    }
                    for (model, dashed), points in lines.items()
                    if points
                ],
            }
        )
    return charts


def _head_tables(models: Analysis, name: str) -> dict[str, Any] | None:
    """Site → model → layers by heads; the deepest colour is the largest value of all.

    None where no head has a value above 0, as null rates of softmax: the lines say so.
    """
    statistics = {model: results["statistics"].get(name, {}) for model, results in models.items()}
    rows = [row for sites in statistics.values() for layers in sites.values() for row in layers]
    largest = max((value or 0 for row in rows for value in row["heads"]), default=0)
    if largest <= 0:
        return None

    def cell(value: float | None) -> tuple[float, str]:
        return (0.0, MISSING) if value is None else (max(value, 0.0) / largest, _text_of(name)(value))

    tables = {
        SITE_NAMES[site]: {
            model: [list(map(cell, row["heads"])) for row in sites[site]]
            for model, sites in statistics.items()
            if any(row["heads"] for row in sites.get(site, []))
        }
        for site in SITE_NAMES
    }
    return {"title": f"{NAMES[name]}, by head", "sites": {site: shown for site, shown in tables.items() if shown}}


def _class_bars(models: Analysis, prefix: str, mark: str) -> dict[str, Any] | None:
    """Site → class → model, share and the mark beside it, means over layers; None where all shares are 0."""
    charts: dict[str, dict[str, list[tuple[str, float, float | None]]]] = {}
    for site in SITE_NAMES:
        for model, results in models.items():
            for kind in CLASSES:
                value, beside = (
                    _mean_over_layers({site: results["statistics"].get(f"{name}.{kind}", {}).get(site, [])})
                    for name in (prefix, mark)
                )
                if value is not None:
                    chart = charts.setdefault(SITE_NAMES[site], {kind: [] for kind in CLASSES})
                    chart[kind].append((model, value, beside))
    shares = [value for chart in charts.values() for parts in chart.values() for _, value, _ in parts]
    return {"title": f"{NAMES[prefix]}, by class of token", "charts": charts} if any(shares) else None
