r"""Score parallel text by a translation model, and rank it or keep the best pairs.

The score of a pair is the loss per target token; a low score is good. `--score null_rate` is the share of null rows in
cross-attention: how often a head attends to no word of the source. This needs an attention that can be null (ReLU, not
softmax). ReLA (Zhang et al. 2021, §5.2) found that pairs with a low null rate are good translations. With our small
models null rates are near chance, except for text in another language (docs/research/alignments.md).

DATA is a .jsonl or .tsv file, or two plain text files; also .gz, and with a slice: 'train.jsonl[:1000]'. The output
is a .jsonl file of the rows with their score, or for plain text three files: source, target and score.

Examples:
    reluformers filter ./runs/rela train.jsonl.gz --output scored.jsonl.gz
    reluformers filter ./runs/rela train.en train.de --keep 0.8 --output kept.en kept.de kept.score
"""

import argparse
import logging
import sys
from itertools import compress

from tqdm.auto import tqdm

from reluformers.files import check_output_files
from reluformers.saved_models import model_files
from reluformers.training.checkpoints import check_model
from reluformers.translation.decoding import load_translation_model, saved_languages
from reluformers_research.analysis.filtering import SCORES, keep_best, score_pairs
from reluformers_research.analysis.parallel_text import ParallelText, add_pair_arguments

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add_pair_arguments(parser)
    parser.add_argument("--output", nargs="+", required=True, help=".jsonl file to write; for plain text, three files")
    parser.add_argument("--score", choices=SCORES, default="loss", help="score of a pair; low is good")
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--keep", type=float, metavar="SHARE", help="write only this share of the rows, the best ones")
    choice.add_argument("--max_score", type=float, metavar="SCORE", help="write only rows with at most this score")
    parser.add_argument("--rank", action="store_true", help="write the best first, not in the order of the data")


def run(options: argparse.Namespace) -> None:
    """Score, then write."""
    languages = (options.source_lang, options.target_lang, saved_languages(options.model))
    text = ParallelText(options.data, *languages)
    text.check_outputs(options.output)
    check_output_files(*options.output, inputs=[*text.paths, *model_files(options.model)])
    if options.keep is not None and not 0 < options.keep <= 1:
        raise ValueError(f"keep must be a share above 0 and at most 1, got {options.keep}")
    check_model(options.model)
    model, tokenizers = load_translation_model(options.model, trust_remote_code=options.trust_remote_code)
    found = score_pairs(model, tokenizers, (row.texts for row in text), max_tokens=options.max_tokens)
    bar = tqdm(found, unit=" pairs", disable=not sys.stderr.isatty())
    scores = [getattr(score, options.score) for score in bar]
    if options.score == "null_rate" and not any(scores):
        logger.warning(
            "all null rates are 0: the cross-attention of %s never attends to nothing; use --score loss", options.model
        )
    rows = zip(text, scores, strict=True)
    if options.keep is not None:
        rows = compress(rows, keep_best(scores, options.keep))
    elif options.max_score is not None:
        rows = (scored for scored in rows if scored[1] <= options.max_score)
    if options.rank:
        rows = sorted(rows, key=lambda scored: scored[1])
    written = text.write(options.output, options.score, rows)
    print(f"{written} of {len(scores)} rows are in {' and '.join(options.output)}")
