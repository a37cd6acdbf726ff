"""Which attentions need a sink: the trigger task of arXiv 2603.11487, with every attention of `causal/attentions`.

    python -m reluformers_research.sinks --page docs/research/sinks.md --plot docs/research/sinks.png

Tokens are a start token, numbers, and one trigger. At the trigger the output is the mean of the numbers before it, at
all others 0. One layer with one head, without residual and biases, learns it from nothing until its largest error in a
batch is below `DONE`, or for `--steps` updates.
"""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from reluformers.configuration.configuration_attention import AttentionConfig
from reluformers.errors import run_main
from reluformers.evaluation.plotting import save_figure
from reluformers.evaluation.results import markdown_table
from reluformers.files import write_text
from reluformers.modeling.attention import MultiHeadAttention
from reluformers.modeling.masks import AttentionMask

from .causal.run import regularization_loss
from .page import replace_blocks
from .tables import Table

LENGTH = 16
WIDTH = 16
BATCH = 128
DONE = 5e-3
SEEDS = (1, 2, 3)


class Trained(NamedTuple):
    """One run: updates, largest error, and means of the weights where the output must be 0.

    Args:
        steps: updates until the task was solved; None where it was not.
        error: largest error in 1,000 rows.
        first: weight on the start token.
        row_sum: sum of the weights' sizes in a row.
        weights: mean weights where the trigger is token 8 [length, length].
    """

    steps: int | None
    error: float
    first: float
    row_sum: float
    weights: Tensor


def draw_rows(count: int, generator: torch.Generator, trigger: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs and outputs [count, length, width], and the position of the trigger in each row."""
    places = torch.randint(2, LENGTH, (count,), generator=generator)
    if trigger is not None:
        places[:] = trigger
    rows = torch.arange(count)
    inputs, outputs = torch.zeros(2, count, LENGTH, WIDTH)
    inputs[:, 0, 0] = 1  # the start token
    inputs[:, 1:, 2:-1] = torch.rand(count, LENGTH - 1, WIDTH - 3, generator=generator) * 2 - 1
    inputs[:, 1:, -1] = 1
    inputs[rows, places, 1] = 1
    inputs[rows, places, -1] = 0
    outputs[rows, places] = inputs[:, 1:].cumsum(1)[rows, places - 2] / (places - 1)[:, None]
    return inputs, outputs, places


def make_mask(attention: AttentionConfig) -> AttentionMask:
    """Causality; a divisor n^α counts the keys between the start token and the query, as many as the mean is of."""
    mask = AttentionMask(LENGTH, LENGTH, torch.device("cpu"), causal_offset=0)
    if attention.length_exponent:
        mask.once("key_counts", lambda: (torch.arange(LENGTH) - 1).clamp_min(1).view(1, 1, LENGTH, 1))
    return mask


def train(attention: AttentionConfig, loss_weights: dict[str, float], seed: int, steps: int) -> Trained:
    """Train one attention, and look where its weight goes."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    mask = make_mask(attention)
    if attention.score == "dot" and attention.scale is None:
        attention = replace(attention, scale=1.0)
    layer = MultiHeadAttention(WIDTH, 1, attention, bias=False)
    for linear in (part for part in layer.modules() if isinstance(part, nn.Linear)):
        nn.init.normal_(linear.weight, std=0.02)
    optimizer = torch.optim.Adam(layer.parameters(), lr=1e-3, betas=(0.9, 0.95))
    solved = None
    for step in range(steps):
        inputs, outputs, _ = draw_rows(BATCH, generator)
        written, weights, _ = layer(inputs, attention_mask=mask)
        loss = (written - outputs).square().mean()
        if any(loss_weights[name] for name in ("normalization_loss_weight", "entropy_loss_weight")):
            loss = loss + regularization_loss((weights,), **loss_weights)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0 and (written - outputs).abs().max() < DONE:
            solved = step
            break
    with torch.no_grad():
        inputs, outputs, places = draw_rows(1000, generator)
        written, weights, _ = layer(inputs, attention_mask=mask)
        idle = torch.ones(1000, LENGTH, dtype=torch.bool)
        idle[torch.arange(1000), places] = False
        idle[:, :2] = False  # the start token has no choice, and the token behind it little
        rows = weights[:, 0][idle]
        _, shown, _ = layer(draw_rows(1000, generator, trigger=7)[0], attention_mask=mask)
    error = (written - outputs).abs().max().item()
    return Trained(solved, error, rows[:, 0].mean().item(), rows.abs().sum(-1).mean().item(), shown.mean((0, 1)))


def table_of(trained: dict[str, list[Trained]]) -> str:
    """A line for each attention; three numbers are of three seeds."""
    lines = []
    for name, runs in trained.items():
        steps = ", ".join("no" if run.steps is None else f"{run.steps:,}" for run in runs)
        numbers = ([f"{getattr(run, part):.3f}" for run in runs] for part in ("error", "first", "row_sum"))
        lines.append([f"`{name}`", steps, *map(", ".join, numbers)])
    columns = ["attention", "solved after", "largest error", "weight on the start token", "sum of a row"]
    return markdown_table(columns, lines)


def plot(trained: dict[str, list[Trained]], path: Path) -> Path:
    """Draw the mean weights of the first seed, a panel for each attention."""
    figure = Figure(figsize=(9, 5.6), layout="constrained")
    axes = figure.subplots(3, -(-len(trained) // 3), squeeze=False).flatten()
    for axis in axes:
        axis.axis("off")
    for axis, (name, runs) in zip(axes, trained.items(), strict=False):
        axis.imshow(runs[0].weights, cmap="Blues", vmin=0, vmax=1)
        axis.set_title(name, fontsize=9)
    return save_figure(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=3000, help="updates at most")
    parser.add_argument("--page", type=Path, help="Markdown page whose table is written anew")
    parser.add_argument("--plot", type=Path, help="picture to draw")
    options = parser.parse_args()
    torch.set_num_threads(1)
    table = Table.load("causal/attentions")
    trained = {}
    for row in table.rows_of("small"):
        recipe = table.recipe("small", row, 1)
        trained[row.name] = [train(recipe.attention, recipe.loss_weights, seed, options.steps) for seed in SEEDS]
        print(table_of({row.name: trained[row.name]}).splitlines()[-1], flush=True)
    if options.page:
        text = options.page.read_text(encoding="utf-8")
        write_text(options.page, replace_blocks(text, {"sinks": table_of(trained)}))
    if options.plot:
        plot(trained, options.plot)


if __name__ == "__main__":
    run_main(main)
