"""Score a translation model: BLEU and chrF with sacreBLEU's signatures, speed, attention statistics.

Example:
    python scripts/evaluate_translation.py runs/reluformer --data data/multi30k --split test \
        --source_lang en --target_lang de --output results.json

The decoding of the ReLA and QKNorm papers:
    --num_beams 4 --length_penalty 0.6 --penalty wu --early_stopping never --min_new_tokens 1
"""

import argparse
import json
import sys
import time

import datasets
import torch
import transformers
from sacrebleu.metrics import BLEU

from reluformers.analysis.attention_report import attention_report, format_attention_report
from reluformers.errors import UserError, run_main
from reluformers.files import atomic_write, check_output_files
from reluformers.translation.decoding import PENALTIES, check_search, load_translation_model, translate
from reluformers.translation.evaluation import teacher_forced_batches
from reluformers.translation.loading import load_translation_split
from reluformers.translation.metrics import ChrF, SacreBLEU

LANGUAGES = ("source_lang", "target_lang")
EARLY_STOPPING = {"heuristic": False, "first": True, "never": "never"}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Score a translation model.", formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("model", help="folder of a saved model, or Hub id")
    parser.add_argument("--data", required=True, help="Hub id, folder or file of sentence pairs")
    parser.add_argument("--data_config", help="configuration name of a Hub data set, such as de-en")
    parser.add_argument("--split", default="test", help="split to translate; may carry a slice, such as test[:100]")
    parser.add_argument("--source_lang", required=True, help="language to translate from, such as en")
    parser.add_argument("--target_lang", required=True, help="language to translate to, such as de")
    parser.add_argument("--num_beams", type=int, default=5, help="beams; 1 is greedy search")
    parser.add_argument("--length_penalty", type=float, default=1.0, help="exponent of the length penalty")
    parser.add_argument("--penalty", choices=PENALTIES, default="hf", help="hf: len^a, wu: ((5 + len)/6)^a")
    parser.add_argument("--early_stopping", choices=EARLY_STOPPING, default="heuristic", help="end of a beam search")
    parser.add_argument("--min_new_tokens", type=int, default=0, help="1 forbids empty translations")
    parser.add_argument("--max_tokens", type=int, default=4096, help="source tokens of a batch, with padding")
    parser.add_argument("--tokenize", default="13a", help="sacreBLEU tokenizer; none for text in tokens")
    parser.add_argument("--attention_report", action="store_true", help="measure the attention weights too")
    parser.add_argument("--output", help="JSON file for the results")
    parser.add_argument("--predictions", help="text file for the translations, one per line")
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
    languages = {name: vars(options)[name] for name in LANGUAGES}
    pairs = load_translation_split(data, options.split, **languages)
    model, tokenizers = load_translation_model(options.model, trust_remote_code=options.trust_remote_code)
    model.to(torch.accelerator.current_accelerator(check_available=True) or "cpu")

    results, predictions = evaluate(options, model, tokenizers, pairs)
    for name in ("bleu", "chrf"):
        print(f"{name}: {results[name]['score']:.2f}  {results[name]['signature']}")
    print(f"{results['sentences']} sentences, {results['sentences_per_second']:.1f} per second on {results['device']}")
    if options.attention_report:
        batches = teacher_forced_batches(
            pairs, *tokenizers, max_length=model.config.max_position_embeddings, max_tokens=options.max_tokens
        )
        results["attention"] = attention_report(model, batches)
        print(format_attention_report(results["attention"]))
    write_files(options, results, predictions)


def check_options(options: argparse.Namespace) -> None:
    """Refuse what would fail only after the translation."""
    check_search(**{name: vars(options)[name] for name in ("num_beams", "length_penalty", "max_tokens")})
    if options.min_new_tokens < 0:
        raise UserError(f"min_new_tokens must be at least 0, got {options.min_new_tokens}")
    if options.tokenize not in BLEU.TOKENIZERS:
        raise UserError(f"tokenize {options.tokenize!r} is not one of {', '.join(sorted(BLEU.TOKENIZERS))}")
    check_output_files(options.output, options.predictions)


def evaluate(options, model, tokenizers, pairs) -> tuple[dict, list[str]]:
    """Translate and score; return the results and the translations."""
    decoding = {
        "num_beams": options.num_beams,
        "length_penalty": options.length_penalty,
        "penalty": options.penalty,
        "early_stopping": EARLY_STOPPING[options.early_stopping],
        "min_new_tokens": options.min_new_tokens,
        "max_tokens": options.max_tokens,
    }
    started = time.perf_counter()
    predictions = translate(model, tokenizers, pairs["source"], progress=sys.stderr.isatty(), **decoding)
    seconds = time.perf_counter() - started
    scored = {"predictions": predictions, "references": list(pairs["target"])}
    results = {
        **{name: vars(options)[name] for name in ("model", "data", "data_config", "split", *LANGUAGES)},
        "decoding": decoding,
        "bleu": SacreBLEU().compute(**scored, tokenize=options.tokenize),
        "chrf": ChrF().compute(**scored),
        "sentences": len(predictions),
        "seconds": round(seconds, 3),
        "sentences_per_second": round(len(predictions) / seconds, 3),
        "device": str(model.device),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    return results, predictions


def write_files(options: argparse.Namespace, results: dict, predictions: list[str]) -> None:
    """Write the results and the translations where the user wants them."""
    if options.output:
        with atomic_write(options.output) as path:
            path.write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    if options.predictions:
        with atomic_write(options.predictions) as path:
            lines = (" ".join(text.splitlines()) + "\n" for text in predictions)
            path.write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    run_main(main)
