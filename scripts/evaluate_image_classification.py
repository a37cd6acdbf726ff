"""Score an image classifier: accuracy, recall and precision of each class, speed, attention statistics.

Example:
    python scripts/evaluate_image_classification.py runs/relu-vit --data data/cifar10 --split test \
        --output results.json --confusion_matrix confusion.png
"""

import argparse
import json
import sys
import time
from typing import Any

import datasets
import torch
import transformers

from reluformers.analysis.attention_report import attention_report, format_attention_report
from reluformers.errors import UserError, run_main
from reluformers.files import atomic_write, check_output_files
from reluformers.images.loading import load_image_split
from reluformers.images.scoring import evaluate, image_batches, load_image_model, model_classes, predict
from reluformers.plotting import check_picture_path, plot_confusion_matrix

PRINTED_CLASSES = 10


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Score an image classifier.", formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("model", help="folder of a saved model, or Hub id")
    parser.add_argument("--data", required=True, help="Hub id, folder or file of labelled images")
    parser.add_argument("--data_config", help="configuration name of a Hub data set")
    parser.add_argument("--split", default="test", help="split to classify; may carry a slice, such as test[:100]")
    parser.add_argument("--image_column", help="column of the images, if there are several")
    parser.add_argument("--label_column", help="column of the classes, if there are several")
    parser.add_argument("--batch_size", type=int, default=64, help="images of a batch")
    parser.add_argument("--num_workers", type=int, default=0, help="processes that decode images; 0 = this one")
    parser.add_argument("--attention_report", action="store_true", help="measure the attention weights too")
    parser.add_argument("--output", help="JSON file for the results")
    parser.add_argument("--confusion_matrix", help="picture of what was taken for what, .png or .svg")
    parser.add_argument("--trust_remote_code", action="store_true", help="run model code of the repository")
    return parser.parse_args()


def main() -> None:
    options = parse_arguments()
    # what matters of transformers' reports comes back as one line
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    check_options(options)
    data = {"path": options.data, "name": options.data_config} if options.data_config else options.data
    columns = {name: vars(options)[name] for name in ("image_column", "label_column")}
    model, processor = load_image_model(options.model, trust_remote_code=options.trust_remote_code)
    names = model_classes(model.config)
    dataset = load_image_split(data, options.split, classes=names, **columns)
    model.to(torch.accelerator.current_accelerator(check_available=True) or "cpu")
    batches = image_batches(
        dataset, processor, model.config, batch_size=options.batch_size, num_workers=options.num_workers
    )

    started = time.perf_counter()
    scores = evaluate(predict(model, batches, progress=sys.stderr.isatty()))
    seconds = time.perf_counter() - started
    results = {
        **{name: vars(options)[name] for name in ("model", "data", "data_config", "split")},
        **{name: scores[name] for name in ("images", "accuracy", "top5_accuracy", "loss")},
        "seconds": round(seconds, 3),
        "images_per_second": round(scores["images"] / seconds, 3),
        "device": str(model.device),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "classes": class_results(scores, names),
    }
    print_results(results)
    if options.attention_report:
        results["attention"] = attention_report(model, batches)
        print(format_attention_report(results["attention"]))
    if options.confusion_matrix:
        plot_confusion_matrix(scores["confusion_matrix"], names, options.confusion_matrix)
    if options.output:
        with atomic_write(options.output) as path:
            path.write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def check_options(options: argparse.Namespace) -> None:
    """Refuse what would fail only after the images were read."""
    for name, least in (("batch_size", 1), ("num_workers", 0)):
        if vars(options)[name] < least:
            raise UserError(f"{name} must be at least {least}, got {vars(options)[name]}")
    if options.confusion_matrix:
        check_picture_path(options.confusion_matrix)
    check_output_files(options.output, options.confusion_matrix)


def class_results(scores: dict[str, Any], names: list[str]) -> dict[str, dict[str, Any]]:
    """The scores of each class by name; `predicted_as` is its row of the confusion matrix, most frequent first."""
    classes = {}
    for label, name in enumerate(names):
        row = scores["confusion_matrix"][label].tolist()
        predicted = {other: count for other, count in zip(names, row, strict=True) if count}
        classes[name] = {
            "images": sum(row),
            "recall": scores["recall"][label],
            "precision": scores["precision"][label],
            "predicted_as": dict(sorted(predicted.items(), key=lambda item: -item[1])),
        }
    return classes


def print_results(results: dict[str, Any]) -> None:
    top5 = "" if results["top5_accuracy"] is None else f", top-5 {results['top5_accuracy']:.2%}"
    print(f"accuracy: {results['accuracy']:.2%}{top5}, loss {results['loss']:.4f}")
    print(f"{results['images']} images, {results['images_per_second']:.1f} per second on {results['device']}")
    found = {name: scores for name, scores in results["classes"].items() if scores["images"]}
    lowest = sorted(found, key=lambda name: found[name]["recall"])[:PRINTED_CLASSES]
    width = max(map(len, lowest))
    print(f"{'lowest recall':<{width}} {'images':>7} {'recall':>8} {'precision':>9}")
    for name in lowest:
        precision = found[name]["precision"]
        shown = "-" if precision is None else f"{precision:.2%}"
        print(f"{name:<{width}} {found[name]['images']:>7} {found[name]['recall']:>8.2%} {shown:>9}")


if __name__ == "__main__":
    run_main(main)
