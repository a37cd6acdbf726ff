r"""How far an exchanged attention is from the softmax before it, as it comes and fitted, without training.

    python research/benchmarks/warm_start_distance.py MODEL --train train.jsonl.gz --validation validation.jsonl.gz

MODEL is any translation model that `model.start` takes. Printed are cross-entropy, in nats per target token, and the
Kullback–Leibler divergence from the original, over pairs of the validation set.
"""

import argparse

import torch
from torch import Tensor
from transformers import PreTrainedModel, set_seed

from reluformers.commands.terminal import silence_transformers
from reluformers.conversion.calibration import calibrate
from reluformers.conversion.convert import build_model, open_source
from reluformers.data.batches import PairCollator
from reluformers.errors import run_main
from reluformers.translation.loading import load_translation_split
from reluformers.translation.tokenization import load_tokenizers, tokenize_pairs

PRESETS = ("reluformer", "relu", "relu-vit", "rela", "rela-g", "qknorm")
BATCH = 32


@torch.inference_mode()
def distance(model: PreTrainedModel, original: PreTrainedModel, batches: list[dict[str, Tensor]]) -> tuple[float, ...]:
    """Cross-entropy and divergence per target token."""
    sums, tokens = torch.zeros(2, dtype=torch.float64), 0
    for batch in batches:
        ours, theirs = (each(**batch).logits.log_softmax(-1) for each in (model, original))
        labels = batch["labels"]
        is_real = labels.ne(-100)
        chosen = ours.gather(-1, labels.clamp_min(0).unsqueeze(-1)).squeeze(-1)
        divergence = (theirs.exp() * (theirs - ours)).sum(-1)
        sums += torch.stack([-chosen[is_real].double().sum(), divergence[is_real].double().sum()])
        tokens += int(is_real.sum())
    return tuple((sums / tokens).tolist())


def main() -> None:
    """Read the options and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--train", required=True)
    parser.add_argument("--validation", required=True)
    parser.add_argument("--source_lang", default="en")
    parser.add_argument("--target_lang", default="de")
    parser.add_argument("--calibration_rows", type=int, default=128)
    parser.add_argument("--validation_rows", type=int, default=128)
    options = parser.parse_args()
    silence_transformers()
    tokenizers = load_tokenizers(options.model)
    collator = PairCollator(tokenizers[0].pad_token_id)
    languages = {"source_lang": options.source_lang, "target_lang": options.target_lang}
    batches = {}
    for name, count in (("train", options.calibration_rows), ("validation", options.validation_rows)):
        split = load_translation_split({name: getattr(options, name)}, name, **languages).select(range(count))
        rows = tokenize_pairs(split, *tokenizers).select_columns(["input_ids", "labels"]).to_list()
        batches[name] = [collator(rows[i : i + BATCH]) for i in range(0, count, BATCH)]
    original = build_model(open_source(options.model))
    print(f"softmax: cross-entropy {distance(original, original, batches['validation'])[0]:.3f}")
    for preset in PRESETS:
        for sites in (None, ["cross"]):
            set_seed(0)
            model = build_model(open_source(options.model), preset, sites)
            before = distance(model, original, batches["validation"])
            calibrate(model, original, batches["train"])
            after = distance(model, original, batches["validation"])
            print(
                f"{preset:<12}{'everywhere' if sites is None else 'cross':<12}"
                f"cross-entropy {before[0]:.3f} → {after[0]:.3f}  KL {before[1]:.3f} → {after[1]:.3f}",
                flush=True,
            )


if __name__ == "__main__":
    run_main(main)
