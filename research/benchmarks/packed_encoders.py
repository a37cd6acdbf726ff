"""Encoders on batches of mixed lengths: one packed row without padding beside padded rows, forward alone.

python research/benchmarks/packed_encoders.py --rounds 7 --threads 1

Random weights of the size of BERT base, as time does not depend on them. Lengths are log-normal, cut at
`--longest` tokens. The two are timed in turn, and medians given, so that what else the machine does meets both.
"""

import argparse
import statistics
import time

import torch
from transformers import AutoModel, BertConfig, DataCollatorWithFlattening, ModernBertConfig

import reluformers  # noqa: F401 (registers the names)

SIZES = {"hidden_size": 768, "num_attention_heads": 12, "vocab_size": 30522, "pad_token_id": 0}
CONFIGS = {
    "bert": BertConfig(**SIZES, num_hidden_layers=12, intermediate_size=3072),
    "modernbert": ModernBertConfig(**SIZES, num_hidden_layers=12, intermediate_size=1152),
}


def draw_texts(number: int, longest: int, seed: int) -> list[torch.Tensor]:
    """Token numbers of some texts, most of them short."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.empty(number).log_normal_(3.6, 0.8, generator=generator).clamp(4, longest).long()
    return [torch.randint(1000, 30000, (length,), generator=generator) for length in lengths.tolist()]


def padded(texts: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    ids = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True)
    return {"input_ids": ids, "attention_mask": (ids != 0).long()}


def packed(texts: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    collate = DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_tensors="pt")
    batch = dict(collate([{"input_ids": text.tolist()} for text in texts]))
    del batch["labels"]
    return batch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=CONFIGS, default=list(CONFIGS))
    parser.add_argument("--texts", type=int, default=16)
    parser.add_argument("--longest", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--attention", default="relu_attention")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    for name in arguments.models:
        torch.manual_seed(0)
        sdpa = AutoModel.from_config(CONFIGS[name], attn_implementation="sdpa").eval()
        own = AutoModel.from_config(CONFIGS[name], attn_implementation=arguments.attention).eval()
        own.load_state_dict(sdpa.state_dict())
        candidates = {
            "sdpa, padded": (sdpa, padded),
            f"{arguments.attention}, padded": (own, padded),
            f"{arguments.attention}, packed": (own, packed),
        }
        times: dict[str, list[float]] = {candidate: [] for candidate in candidates}
        for number in range(arguments.rounds + 1):
            texts = draw_texts(arguments.texts, arguments.longest, seed=number)
            for candidate, (model, collate) in candidates.items():
                batch = collate(texts)
                start = time.process_time()
                with torch.inference_mode():
                    model(**batch)
                if number > 0:  # the first round warms up
                    times[candidate].append(time.process_time() - start)
        ratios = {
            candidate: [one / other for one, other in zip(found, times["sdpa, padded"], strict=True)]
            for candidate, found in times.items()
        }
        for candidate, found in times.items():
            ratio = statistics.median(ratios[candidate])
            print(f"{name:<11} {candidate:<24} {statistics.median(found):7.3f} s   {ratio:.2f} of sdpa's", flush=True)


if __name__ == "__main__":
    main()
