"""Train a small ReLUFormer on lines of the Unicode locale data, score it, save it and open it without this library.

Example:
    python scripts/demo.py --text "Germany, France, and Italy: in 5 days"
"""

import argparse
import time
from pathlib import Path

import datasets
import transformers

from reluformers.demo.corpus import build_corpus
from reluformers.demo.pipeline import (
    check_output,
    check_text,
    train_model,
    translate_examples,
    translate_in_clean_process,
    write_corpus,
)
from reluformers.errors import run_main
from reluformers.training import TranslationRecipe

RECIPE = Path(__file__).with_name("recipes") / "demo.yaml"
DEFAULT_TEXT = "Vienna, Rome, and Tokyo: Wednesday, January 3, 2024, 3:04 PM; 3 hours and 20 minutes"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Train a small ReLUFormer from English to German and translate a line with the saved folder.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--text", default=DEFAULT_TEXT, help="English line to translate at the end")
    parser.add_argument("--output_dir", type=Path, default=Path("runs/demo"), help="folder of the model")
    parser.add_argument("--saved", action="store_true", help="translate with the saved model, train nothing")
    return parser.parse_args()


def train(folder: Path) -> None:
    """All that comes before the last translation."""
    check_output(folder)
    start = time.perf_counter()
    corpus = build_corpus()
    files = write_corpus(corpus, folder.with_name(f"{folder.name}_corpus"))
    print(
        f"corpus: {len(corpus.train):,} training and {len(corpus.held_out)} held-out lines in {files['train'].parent}"
    )
    results = train_model(TranslationRecipe.load(RECIPE), files, folder, report=print)
    minutes = (time.perf_counter() - start) / 60
    print(f"\nsacreBLEU on held-out lines: {results['validation_bleu']:.2f}  ({results['bleu_signature']})")
    print(f"after {minutes:.1f} minutes; saved in {folder}\n\nTen held-out lines:")
    for row, translation in translate_examples(folder, corpus.held_out):
        verdict = "" if translation == row.target else f"   (reference: {row.target})"
        print(f"  {row.kind + ':':15} {row.source}\n{'':18}{translation}{verdict}")


def main() -> None:
    options = parse_arguments()
    # before any work: a bad text is known now
    text = check_text(options.text)
    transformers.logging.set_verbosity_error()
    datasets.disable_progress_bars()
    if not options.saved:
        train(options.output_dir)
    answer = translate_in_clean_process(options.output_dir, text)
    print(f"\n{options.output_dir} opened in a process without reluformers, by {answer.model_class}:")
    print(f"  {text}\n  {answer.text}")


if __name__ == "__main__":
    run_main(main)
