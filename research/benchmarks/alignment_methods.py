r"""Word alignments of one model that translates both ways, by several methods, beside those of a statistical aligner.

    python research/benchmarks/alignment_methods.py text train.jsonl.gz more.jsonl.gz --gold gold.jsonl.gz \
        --languages en fr --output runs/align
    reluformers train scripts/recipes/tatoeba_en_de.yaml data.train=runs/align/train.jsonl.gz \
        data.source_lang=source data.target_lang=target … --output_dir runs/align/model
    eflomal-align -s runs/align/corpus.en -t runs/align/corpus.fr -f forward.txt -r reverse.txt
    python research/benchmarks/alignment_methods.py measure runs/align/model runs/align/gold.jsonl \
        --corpus runs/align/corpus.en runs/align/corpus.fr --links forward.txt reverse.txt

`text` cuts all sentences into lower-cased words alike, puts the texts of the hand-aligned pairs in front, without
their links, as is usual for aligners, and writes every pair in both directions. `measure` chooses layers and heads by
the first hand-aligned pairs and reports the error rate on the others:

    attention   each target word is linked with the source word of the largest attention, of the best head
    encoder     with the word of the most similar encoder state: one model reads both languages
    learned     by one more attention between the model's frozen states, of the decoder at the step that has a word as
                its input and of the encoder, which learns the encoder's links that both directions share (the module
                of SHIFT-AET, Chen et al. 2020, with links that need no other aligner)

each forward, in reverse, and what both agree on.
"""

import argparse
import gzip
import json
import random
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from reluformers.data.batches import PairCollator, length_batches
from reluformers.errors import run_main
from reluformers.evaluation.alignments import AlignmentHead, Link, word_alignments
from reluformers.evaluation.cross_attention import Tokenizers
from reluformers.files import write_json
from reluformers.modeling.pipeline_translation import Words, split_text, sum_over_words
from reluformers.translation.decoding import load_translation_model
from reluformers_research.analysis.gold_alignments import GoldAlignment, LinkCounts, alignment_scores
from reluformers_research.analysis.parallel_text import ParallelText

WORD = re.compile(r"[^\W\d_]+['’](?=\w)|\d+(?:[.,]\d+)*|[^\W_]+|[^\w\s]|_")
SHORT = 8  # words of the source
BATCH_TOKENS = 2048

Pair = tuple[str, str]
Links = list[set[Link]]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    text = commands.add_parser("text", help="write the text that models and aligners learn from")
    text.add_argument("pairs", nargs="+", help="files of sentence pairs")
    text.add_argument("--gold", required=True, help="file of hand-aligned pairs")
    text.add_argument("--languages", nargs=2, required=True, help="keys of the sentences")
    text.add_argument("--validation", help="file of sentence pairs")
    text.add_argument("--output", type=Path, required=True, help="folder")
    measure = commands.add_parser("measure", help="measure the methods")
    measure.add_argument("model", help="folder of a model that was trained on that text")
    measure.add_argument("gold", help="gold.jsonl of that text")
    measure.add_argument("--development", type=int, default=100, help="pairs that choose layers and heads")
    measure.add_argument("--corpus", nargs=2, help="both sides of that text, for the method `learned`")
    measure.add_argument("--learn_from", type=int, default=10_000, help="pairs of it that are learned from")
    measure.add_argument("--links", nargs=2, help="links of another aligner, forward and reverse, in Pharaoh's format")
    measure.add_argument("--seed", type=int, default=1)
    measure.add_argument("--output", help="JSON file for the numbers")
    return parser.parse_args()


def main() -> None:
    options = parse_arguments()
    if options.command == "text":
        write_text_files(options)
    else:
        measure(options)


# --- the text -------------------------------------------------------------------------------------------------------


def words(text: str) -> str:
    """Cut a sentence into lower-cased words, as hand-aligned text is: punctuation and elided articles stand apart."""
    return " ".join(WORD.findall(text.lower()))


def write_text_files(options: argparse.Namespace) -> None:
    gold = [
        {**row.values, "source": row.source.lower().split(), "target": row.target.lower().split()}
        for row in ParallelText([options.gold])
    ]
    pairs = [(" ".join(row["source"]), " ".join(row["target"])) for row in gold]
    pairs += [
        (words(row.source), words(row.target))
        for path in options.pairs
        for row in ParallelText([path], *options.languages)
    ]
    options.output.mkdir(parents=True, exist_ok=True)
    write_rows(options.output / "gold.jsonl", gold)
    write_both_directions(options.output / "train.jsonl.gz", pairs)
    if options.validation:
        held_out = ParallelText([options.validation], *options.languages)
        write_both_directions(
            options.output / "validation.jsonl.gz", [(words(row.source), words(row.target)) for row in held_out]
        )
    for language, side in zip(options.languages, zip(*pairs, strict=True), strict=True):
        (options.output / f"corpus.{language}").write_text("".join(f"{line}\n" for line in side), encoding="utf-8")


def write_both_directions(path: Path, pairs: Iterable[Pair]) -> None:
    write_rows(path, ({"source": a, "target": b} for pair in pairs for a, b in (pair, pair[::-1])))


def write_rows(path: Path, rows: Iterable[dict]) -> None:
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


# --- links and their error rates ------------------------------------------------------------------------------------


class Gold:
    """Hand-aligned pairs: texts and links; the first ones choose."""

    def __init__(self, path: str, development: int):
        rows = list(ParallelText([path]))
        self.pairs = [row.texts for row in rows]
        self.links = [GoldAlignment.from_row(row.values, row.place) for row in rows]
        self.development = range(development)
        self.test = range(development, len(rows))
        self.short = [row for row in self.test if len(self.pairs[row][0].split()) <= SHORT]

    def scores(self, links: Links, rows: Sequence[int]) -> dict[str, float]:
        """AER, precision, recall of some rows."""
        sure = [set(self.links[row].sure) for row in rows]
        possible = [set(self.links[row].possible) | own for row, own in zip(rows, sure, strict=True)]
        found = [links[row] for row in rows]
        hits = [sum(len(a & b) for a, b in zip(found, kind, strict=True)) for kind in (sure, possible)]
        return alignment_scores(sum(map(len, found)), *hits, sum(map(len, sure)))


def mirrored(links: Links) -> Links:
    """Links of target and source words as those of source and target words."""
    return [{(target, source) for source, target in row} for row in links]


def agreed(forward: Links, reverse: Links) -> Links:
    """Links that both directions have."""
    return [a & b for a, b in zip(forward, reverse, strict=True)]


def grown(forward: Links, reverse: Links) -> Links:
    """Agreed links, and their neighbours of one direction for words without a link (grow-diag, Koehn et al. 2003)."""
    result = []
    for a, b in zip(forward, reverse, strict=True):
        links, union = a & b, a | b
        sources, targets = {s for s, _ in links}, {t for _, t in links}
        todo = sorted(links)
        while todo:
            s, t = todo.pop(0)
            near = [(s + i, t + j) for i in (-1, 0, 1) for j in (-1, 0, 1) if (s + i, t + j) in union - links]
            for link in near:
                if link[0] not in sources or link[1] not in targets:
                    links.add(link)
                    sources.add(link[0])
                    targets.add(link[1])
                    todo.append(link)
        result.append(links)
    return result


def read_pharaoh(path: str, count: int) -> Links:
    with open(path, encoding="utf-8") as file:
        return [{tuple(map(int, link.split("-"))) for link in line.split()} for line in islice(file, count)]


def diagonal(source: str, target: str) -> set[Link]:
    """Link each target word with the source word at the same place in proportion."""
    sizes = len(source.split()), len(target.split())
    return {(min(sizes[0] - 1, round(place * sizes[0] / sizes[1])), place) for place in range(sizes[1])}


def argmax_links(weights: Tensor) -> set[Link]:
    """Link each row, a target word, with its largest column, a source word    weights [targets, sources]."""
    return (
        {(source, target) for target, source in enumerate(weights.argmax(-1).tolist())} if weights.numel() else set()
    )


# --- the methods ----------------------------------------------------------------------------------------------------


def choose_head(
    model: PreTrainedModel, tokenizers: Tokenizers, pairs: Sequence[Pair], gold: Sequence[GoldAlignment]
) -> AlignmentHead:
    """Find the head with the fewest errors."""
    counts = LinkCounts()
    for aligned, hand in zip(word_alignments(model, tokenizers, pairs, max_tokens=BATCH_TOKENS), gold, strict=True):
        counts.add(aligned, hand)
    return counts.best()


def attention_links(
    model: PreTrainedModel, tokenizers: Tokenizers, pairs: Sequence[Pair], head: AlignmentHead
) -> Links:
    """Link each target word with the source word of the largest attention of a head."""
    aligned = word_alignments(model, tokenizers, pairs, max_tokens=BATCH_TOKENS)
    return [set(row.of(head)) for row in tqdm(aligned, total=len(pairs), desc="attention", unit=" pairs")]


class States:
    """Hidden states of a frozen model while it writes given targets, by batches of similar length."""

    def __init__(self, model: PreTrainedModel, tokenizers: Tokenizers):
        self.model, self.tokenizers = model.eval(), tokenizers

    def tokens(self, texts: Sequence[str]) -> list[list[int]]:
        limit = self.model.config.max_position_embeddings
        return self.tokenizers[0](list(texts), truncation=True, max_length=limit)["input_ids"]

    def words(self, text: str, tokens: list[int]) -> Words:
        return split_text(self.tokenizers[0], text, tokens)

    @torch.no_grad()
    def batches(self, pairs: Sequence[Pair]) -> Iterator[tuple[list[int], list[Words], list[Words], Tensor, Tensor]]:
        """Yield the places of a batch's pairs, their words, and states of the encoder and, shifted, of the decoder."""
        sides = [self.tokens([pair[side] for pair in pairs]) for side in (0, 1)]
        collate = PairCollator(self.tokenizers[0].pad_token_id)
        batches = list(length_batches([max(map(len, row)) for row in zip(*sides, strict=True)], BATCH_TOKENS))
        for rows in random.sample(batches, len(batches)):
            batch = collate([{"input_ids": sides[0][row], "labels": sides[1][row]} for row in rows])
            outputs = self.model(**batch, output_hidden_states=True, use_cache=False)
            # the state that has a token as its input stands one step later
            decoder = functional.pad(outputs.decoder_hidden_states[-1][:, 1:], (0, 0, 0, 1))
            cut = [[self.words(pairs[row][side], sides[side][row]) for row in rows] for side in (0, 1)]
            yield rows, *cut, outputs.encoder_last_hidden_state, decoder

    @torch.no_grad()
    def encoder_layers(self, text: str) -> Tensor:
        """Unit states of words, the mean of their tokens'    [layers + 1, words, d_model]."""
        tokens = self.tokens([text])[0]
        states = self.model.get_encoder()(input_ids=torch.tensor([tokens]), output_hidden_states=True).hidden_states
        found, index = self.words(text, tokens)
        places = functional.one_hot(torch.tensor(index), len(found) + 1).float()[:, :-1]
        means = (places / places.sum(0).clamp_min(1)).T @ torch.cat(states)
        return functional.normalize(means - means.mean(1, keepdim=True), dim=-1)


def encoder_links(states: States, pairs: Sequence[Pair]) -> list[tuple[Links, Links]]:
    """Links by the cosine of encoder states, forward and in reverse, of each layer."""
    layers: list[tuple[Links, Links]] = []
    for pair in tqdm(pairs, desc="encoder", unit=" pairs"):
        cosines = torch.einsum("lsd,ltd->lts", *map(states.encoder_layers, pair))
        layers = layers or [([], []) for _ in cosines]
        for (forward, reverse), weights in zip(layers, cosines, strict=True):
            forward.append(argmax_links(weights))
            reverse.append(*mirrored([argmax_links(weights.T)]))
    return layers


class LearnedAlignment(nn.Module):
    """One head from decoder to encoder states of a frozen model: α = softmax(W_q d · W_k e / √d_model)."""

    def __init__(self, width: int):
        super().__init__()
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)

    def forward(self, encoder: Tensor, decoder: Tensor) -> Tensor:
        """Score    encoder [source_len, d_model], decoder [target_len, d_model] → [target_len, source_len]."""
        return self.query(decoder) @ self.key(encoder).T / encoder.shape[-1] ** 0.5

    def learn(self, states: States, pairs: Sequence[Pair], links: Links, epochs: int = 2) -> None:
        """Learn links: −log Σ α of the tokens of linked words, mean over the linked target tokens of a batch."""
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        for _ in range(epochs):
            losses = []
            for rows, sources, targets, encoder, decoder in tqdm(states.batches(pairs), desc="learn", unit=" batches"):
                terms = []
                for place, row in enumerate(rows):
                    source, target = sources[place], targets[place]
                    linked = torch.zeros(len(target[0]) + 1, len(source[0]) + 1, dtype=torch.bool)
                    for source_word, target_word in links[row]:
                        linked[target_word, source_word] = True
                    wanted = linked[torch.tensor(target[1])][:, torch.tensor(source[1])]
                    chosen = wanted.any(-1)
                    scores = self(encoder[place, : len(source[1])], decoder[place, : len(target[1])])
                    logs = scores.log_softmax(-1).masked_fill(~wanted, -torch.inf).logsumexp(-1)
                    terms.append(-logs[chosen])
                loss = torch.cat(terms).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(float(loss.detach()))
            sys.stderr.write(f"learned: loss {sum(losses) / len(losses):.3f}\n")

    @torch.no_grad()
    def links(self, states: States, pairs: Sequence[Pair]) -> Links:
        """Link each target word with the source word of the largest attention."""
        result: Links = [set() for _ in pairs]
        for rows, sources, targets, encoder, decoder in states.batches(pairs):
            for place, row in enumerate(rows):
                source, target = sources[place], targets[place]
                scores = self(encoder[place, : len(source[1])], decoder[place, : len(target[1])])
                result[row] = argmax_links(sum_over_words(scores.softmax(-1), source, target)[:, :-1])
        return result


def measure(options: argparse.Namespace) -> None:
    torch.manual_seed(options.seed)
    random.seed(options.seed)
    gold = Gold(options.gold, options.development)
    model, tokenizers = load_translation_model(options.model)
    states = States(model, tokenizers)
    table: dict[str, dict] = {}

    def report(name: str, links: Links, choice: str = "") -> None:
        parts = {"development": gold.development, "test": gold.test, "short": gold.short}
        table[name] = {"choice": choice, **{part: gold.scores(links, rows) for part, rows in parts.items()}}
        scores = ", ".join(f"{part} {values['aer']:.3f}" for part, values in table[name].items() if part != "choice")
        precision, recall = table[name]["test"]["precision"], table[name]["test"]["recall"]
        sys.stdout.write(f"{name}: error {scores}; precision {precision:.3f}, recall {recall:.3f} {choice}\n")
        sys.stdout.flush()

    def report_both(name: str, forward: Links, reverse: Links, choices: Sequence[str] = ("", "")) -> None:
        for way, links, choice in zip(("forward", "reverse"), (forward, reverse), choices, strict=True):
            report(f"{name}, {way}", links, choice)
        report(f"{name}, both", agreed(forward, reverse))
        report(f"{name}, grown", grown(forward, reverse))

    if options.links:
        forward, reverse = (read_pharaoh(path, len(gold.pairs)) for path in options.links)
        report_both("other", forward, reverse)
    report("diagonal", [diagonal(*pair) for pair in gold.pairs])
    turned = [pair[::-1] for pair in gold.pairs]
    turned_gold = [GoldAlignment(*map(list, mirrored(hand))) for hand in gold.links]
    first = slice(0, options.development)
    heads = [
        choose_head(model, tokenizers, pairs[first], hand[first])
        for pairs, hand in ((gold.pairs, gold.links), (turned, turned_gold))
    ]
    forward = attention_links(model, tokenizers, gold.pairs, heads[0])
    reverse = mirrored(attention_links(model, tokenizers, turned, heads[1]))
    report_both("attention", forward, reverse, [str(head) for head in heads])
    layers = encoder_links(states, gold.pairs)
    errors = [gold.scores(agreed(*both), gold.development)["aer"] for both in layers]
    layer = errors.index(min(errors))
    report_both("encoder", *layers[layer], [f"layer {layer} of 0 to {len(layers) - 1}"] * 2)
    if options.corpus:
        corpus = list(ParallelText(options.corpus))[len(gold.pairs) :]
        pairs = [row.texts for row in random.sample(corpus, options.learn_from)] + gold.pairs
        shared = agreed(*encoder_links(states, pairs)[layer])
        learned = LearnedAlignment(model.config.d_model)
        learned.learn(states, pairs + [pair[::-1] for pair in pairs], shared + mirrored(shared))
        report_both("learned", learned.links(states, gold.pairs), mirrored(learned.links(states, turned)))
    if options.output:
        write_json(options.output, table)


if __name__ == "__main__":
    run_main(main)
