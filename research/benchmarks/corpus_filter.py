"""How well null attention finds bad sentence pairs, beside the model's loss and the ratio of lengths.

    python research/benchmarks/corpus_filter.py ./runs/rela-g --data test.jsonl.gz --source_lang en --target_lang de \
        --wrong_lang fr --share 0.2

Held-out pairs are taken for good ones, and a known share is made bad, in each of three ways by itself: targets are
shuffled; targets are in a wrong language (`--wrong_lang`, else the source is copied); words of another target are
inserted. A row says for each score the area under the ROC curve, and the share of bad pairs among as many of the worst
as there are bad ones. Null attention: Zhang et al. 2021, §5.2 and Appendix B.
"""

import argparse
import json
from pathlib import Path

import numpy as np

from reluformers.errors import run_main
from reluformers.translation.decoding import load_translation_model
from reluformers_research.analysis.filter_quality import (
    CORRUPTIONS,
    corrupt,
    length_ratio,
    precision_at_share,
    roc_auc,
)
from reluformers_research.analysis.filtering import SCORES, score_pairs
from reluformers_research.analysis.parallel_text import ParallelText


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", help="folders of saved models, or Hub ids")
    parser.add_argument("--data", required=True, help="file of rows of held-out pairs, perhaps with a slice")
    parser.add_argument("--source_lang", required=True)
    parser.add_argument("--target_lang", required=True)
    parser.add_argument("--wrong_lang", help="key of the same rows with sentences in a third language")
    parser.add_argument("--share", type=float, default=0.2, help="of the pairs that are made bad")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--trust_remote_code", action="store_true")
    parser.add_argument("--output", help="JSON file for the numbers")
    return parser.parse_args()


def main() -> None:
    options = parse_arguments()
    pairs = [row.texts for row in ParallelText([options.data], options.source_lang, options.target_lang)]
    wrong = ParallelText([options.data], options.source_lang, options.wrong_lang or options.source_lang)
    others = [row.target for row in wrong]
    results = []
    for model_name in options.models:
        translator = load_translation_model(model_name, trust_remote_code=options.trust_remote_code)
        for kind in CORRUPTIONS:
            mixed, is_bad = corrupt(pairs, kind, options.share, others=others, seed=options.seed)
            columns = zip(*score_pairs(*translator, mixed), strict=True)
            scores = {"length ratio": length_ratio(mixed), **dict(zip(SCORES, map(np.array, columns), strict=True))}
            for name, values in scores.items():
                result = {"model": model_name, "bad pairs": kind, "share": options.share, "score": name}
                result |= {"auc": roc_auc(values, is_bad), "precision": precision_at_share(values, is_bad)}
                results.append({**result, "mean good": values[~is_bad].mean(), "mean bad": values[is_bad].mean()})
    print(
        f"{len(pairs)} pairs of {Path(options.data).name}, a share of {options.share} made bad, seed {options.seed}\n"
    )
    print("| model | bad pairs | score | ROC-AUC | precision at the share |\n|---|---|---|---|---|")
    for row in results:
        print(f"| {row['model']} | {row['bad pairs']} | {row['score']} | {row['auc']:.3f} | {row['precision']:.3f} |")
    if options.output:
        Path(options.output).write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    run_main(main)
