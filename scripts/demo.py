"""Train a small ReLUFormer on lines of the Unicode locale data and a small ReLU-ViT on handwritten digits.

Both are scored, saved and opened without this library.

Example:
    python scripts/demo.py --text "Germany, France, and Italy: in 5 days"
"""

import argparse
import time
from pathlib import Path

import datasets
import transformers

from demo import train_model
from demo.corpus import build_corpus
from demo.digits import classify_in_clean_process, first_digit, write_digits
from demo.translation import first_of_each_kind, translate_in_clean_process, translate_rows, write_corpus
from reluformers.data.names import marked_as_local
from reluformers.errors import run_main
from reluformers.tasks import load_recipe

RECIPES = Path(__file__).with_name("recipes")
DEFAULT_TEXT = "Vienna, Rome, and Tokyo: Wednesday, January 3, 2024, 3:04 PM; 3 hours and 20 minutes"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Train a small ReLUFormer from English to German and translate a line with the saved folder; "
        "then train a small ReLU-ViT on handwritten digits.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--text", default=DEFAULT_TEXT, help="English line to translate at the end")
    parser.add_argument("--output_dir", type=Path, default=Path("./runs/demo"), help="folder of the translation model")
    return parser.parse_args()


def train_translator(folder: Path) -> None:
    """All that comes before the last translation."""
    start = time.perf_counter()
    corpus = build_corpus()
    files = write_corpus(corpus, folder.with_name(f"{folder.name}_corpus"))
    print(
        f"corpus: {len(corpus.train):,} training and {len(corpus.held_out)} held-out lines in {files['train'].parent}"
    )
    results = train_model(load_recipe(RECIPES / "demo.yaml"), files, folder, report=print)
    minutes = (time.perf_counter() - start) / 60
    print(f"\nsacreBLEU on held-out lines: {results['validation_bleu']:.2f}  ({results['bleu_signature']})")
    print(f"after {minutes:.1f} minutes; saved in {marked_as_local(str(folder))}")
    translations = translate_rows(folder, corpus.held_out)
    right = sum(row.target == translation for row, translation in zip(corpus.held_out, translations, strict=True))
    print(f"Right to the letter: {right} of {len(translations)} lines")
    print("\nTen held-out lines:")
    for row, translation in first_of_each_kind(corpus.held_out, translations, 10):
        verdict = "" if translation == row.target else f"   (reference: {row.target})"
        print(f"  {row.kind + ':':15} {row.source}\n{'':18}{translation}{verdict}")


def show_translation(folder: Path, text: str) -> None:
    """Translate a line with the saved folder and nothing else."""
    answer = translate_in_clean_process(folder, text)
    print(f"\n{marked_as_local(str(folder))} opened in a process without reluformers, by {answer['model_class']}:")
    print(f"  {text}\n  {answer['translation_text']}")
    if answer["warning"]:
        print(f"warning: {answer['warning']}")


def train_classifier(folder: Path) -> None:
    """The image model from digits to its answer."""
    print("\nHandwritten digits of 8 x 8 pixels:")
    start = time.perf_counter()
    files = write_digits(folder.with_name(f"{folder.name}_data"))
    results = train_model(load_recipe(RECIPES / "demo_digits.yaml"), files, folder, report=print)
    seconds = time.perf_counter() - start
    print(f"\naccuracy on held-out digits: {results['validation_accuracy']:.1%}")
    print(f"after {seconds:.0f} seconds; saved in {marked_as_local(str(folder))}, with its confusion matrix")
    picture, truth = first_digit(files["validation"])
    answer = classify_in_clean_process(folder, picture)
    print(f"\n{marked_as_local(str(folder))} opened in a process without reluformers, by {answer['model_class']}:")
    print(f"  a held-out {truth} is taken for {answer['label']} ({answer['score']:.1%})")


def main() -> None:
    options = parse_arguments()
    transformers.logging.set_verbosity_error()
    datasets.disable_progress_bars()
    train_translator(options.output_dir)
    show_translation(options.output_dir, " ".join(options.text.split()))
    train_classifier(options.output_dir.with_name(f"{options.output_dir.name}_digits"))


if __name__ == "__main__":
    run_main(main)
