r"""What share of cached keys a decoding step could leave out exactly, where weights are 0 below a threshold.

    python research/benchmarks/skippable_pages.py FOLDER text/validation.parquet

A page of keys that follow one another may be left out for a query q if no key of it can have a score above θ. Two
bounds of max_k q·k over a page: by channels, Σ_d max(q_d·min_k k_d, q_d·max_k k_d), and by centre and radius,
q·c + ‖q‖·max_k ‖k − c‖. Beside them the share of pages that hold no weight at all, which no bound can exceed. Where
heads share keys a page falls if it does for all of them. FOLDER is a model of `reluformers table causal/attentions`;
the queries are the last 64 of each window.
"""

import argparse
from collections import defaultdict
from pathlib import Path

import torch
from torch import Tensor

from reluformers.errors import run_main
from reluformers.evaluation.results import markdown_table
from reluformers.modeling.attention import AttentionVariant
from reluformers_research.causal.rows import load_stream, load_tokenizer, windows
from reluformers_research.causal.scoring import open_model

_WITH_ZEROS = {"relu", "relu2", "relu6"}
_QUERIES = 64
_BOUNDS = ("channels", "radius", "empty")


def page_bounds(query: Tensor, key: Tensor, page: int) -> dict[str, Tensor]:
    """Upper bounds of the scores of each page, and the highest score itself.

    Args:
        query: [heads, queries, width].
        key: [heads, keys, width]; the last page may be shorter, and is left out.
        page: keys of a page.

    Returns:
        `"channels"`, `"radius"` and `"empty"`, each [heads, queries, pages].
    """
    pages = key[:, : key.shape[1] // page * page].unflatten(1, (-1, page))
    lowest, highest = pages.amin(2), pages.amax(2)
    positive, negative = query.clamp_min(0), query.clamp_max(0)
    centre = (lowest + highest) / 2
    radius = (pages - centre[:, :, None]).norm(dim=-1).amax(2)
    return {
        "channels": positive @ highest.mT + negative @ lowest.mT,
        "radius": query @ centre.mT + query.norm(dim=-1, keepdim=True) * radius[:, None],
        "empty": torch.einsum("hqd,hpkd->hqpk", query, pages).amax(-1),
    }


@torch.no_grad()
def shares(model: torch.nn.Module, rows: Tensor, page: int) -> list[dict[str, float]]:
    """Share of pages that each bound lets fall, of each layer."""
    found: list[dict[str, list[float]]] = []
    attend = AttentionVariant.attend

    def noting(self, formula, query, key, value, mask, *arguments, **options):
        if self.attention.activation not in _WITH_ZEROS:
            raise ValueError(f"the attention has {self.attention.activation}, but must have one of {_WITH_ZEROS}")
        own = found[len(calls)]
        calls.append(own)
        threshold = torch.as_tensor(formula.current_threshold(mask, query)).expand(1, 1, query.shape[2], 1)
        scaling = formula.scaling * (1.0 if self.scale is None else self.scale)
        repeated = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
        last = query.shape[2] - _QUERIES
        for states, keys in zip(query[:, :, last:] * scaling, repeated[:, :, :last], strict=True):
            for name, bounds in page_bounds(states, keys, page).items():
                falls = (bounds <= threshold[0, :, last:]).unflatten(0, (key.shape[1], -1)).all(1)
                own[name].append(falls.double().mean().item())
        return attend(self, formula, query, key, value, mask, *arguments, **options)

    found.extend(defaultdict(list) for _ in range(model.config.num_hidden_layers))
    AttentionVariant.attend = noting
    try:
        for row in rows:
            calls: list = []
            model(input_ids=row[None], use_cache=False)
    finally:
        AttentionVariant.attend = attend
    return [{name: sum(values) / len(values) for name, values in layer.items()} for layer in found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("text", help="Parquet file")
    parser.add_argument("--lengths", type=int, nargs="+", default=[256, 1024, 4096])
    parser.add_argument("--pages", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--rows", type=int, default=8, help="windows of each length")
    options = parser.parse_args()
    model = open_model(options.model).eval()
    stream = load_stream(options.text, "validation", load_tokenizer(options.model))
    lines = []
    for length in options.lengths:
        rows = windows(stream, length)[: options.rows]
        for page in options.pages:
            for layer, found in enumerate(shares(model, rows, page)):
                lines.append([str(length), str(page), str(layer), *(f"{found[name]:.1%}" for name in _BOUNDS)])
    print(markdown_table(["length", "page", "layer", "by channels", "by radius", "empty"], lines), end="")


if __name__ == "__main__":
    run_main(main)
