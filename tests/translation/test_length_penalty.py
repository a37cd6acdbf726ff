"""The Wu length penalty against a naive beam search and a closed form."""

import pytest
import torch
from transformers import MarianConfig, MarianMTModel

from reluformers.translation.decoding import wu_length_penalty

PAD, BOS, EOS = 0, 1, 2


def tiny_model(seed: int = 0, vocab_size: int = 7) -> MarianMTModel:
    torch.manual_seed(seed)
    config = MarianConfig(
        vocab_size=vocab_size, d_model=8, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=8, decoder_ffn_dim=8, max_position_embeddings=32, init_std=1.0,
        pad_token_id=PAD, bos_token_id=BOS, eos_token_id=EOS, decoder_start_token_id=BOS, forced_eos_token_id=None,
    )  # fmt: skip
    model = MarianMTModel(config).eval()
    model.generation_config.forced_eos_token_id = None
    with torch.no_grad():  # flat enough that </s> competes with longer texts
        model.model.shared.weight.mul_(0.5)
        model.final_logits_bias[0, EOS] = 1.0
    return model


def penalty(length: int, alpha: float, kind: str) -> float:
    return ((5 + length) / 6) ** alpha if kind == "wu" else length**alpha


def log_probs(model, source: torch.Tensor, prefix: list[int]) -> list[float]:
    with torch.no_grad():
        logits = model(input_ids=source, decoder_input_ids=torch.tensor([[BOS, *prefix]])).logits[0, -1]
    return logits.float().log_softmax(-1).tolist()


def naive_beam_search(model, source, beams, alpha, kind, max_new_tokens, never):
    """Beam search with lists: finished hypotheses are kept aside and scored by their penalised log-probability."""
    running, finished = [(0.0, [])], []
    for length in range(1, max_new_tokens + 1):
        candidates = [
            (score + value, [*tokens, token])
            for score, tokens in running
            for token, value in enumerate(log_probs(model, source, tokens))
        ]
        candidates.sort(key=lambda item: -item[0])
        candidates = candidates[: 2 * beams]
        ended = [token[-1] == EOS or length == max_new_tokens for _, token in candidates]
        finished += [
            (score / penalty(length, alpha, kind), tokens)
            for (score, tokens), end in zip(candidates[:beams], ended[:beams], strict=True)
            if end
        ]
        finished = sorted(finished, key=lambda item: -item[0])[:beams]
        running = [item for item, end in zip(candidates, ended, strict=True) if not end][:beams]
        if not running:
            break
        best = running[0][0] / penalty(max_new_tokens if never and alpha > 0 else length, alpha, kind)
        if len(finished) == beams and best <= finished[-1][0]:
            break
    return finished[0]


def beam_search(model, source, **options):
    return model.generate(source, do_sample=False, return_dict_in_generate=True, output_scores=True, **options)


@pytest.mark.parametrize(("early_stopping", "alpha"), [(False, 0.6), ("never", 1.0), (False, -0.5), ("never", -0.5)])
def test_hypotheses_and_scores_are_those_of_the_wu_penalty(alpha, early_stopping):
    different = 0
    for seed in (1, 2, 4, 7, 10, 11):
        model = tiny_model(seed)
        source = torch.tensor([[4, 5, 6, 3, EOS]])
        options = {"num_beams": 3, "length_penalty": alpha, "max_new_tokens": 8, "early_stopping": early_stopping}
        wu = beam_search(wu_length_penalty(model), source, **options)
        plain = beam_search(model, source, **options)
        for result, kind in ((wu, "wu"), (plain, "hf")):
            score, tokens = naive_beam_search(model, source, 3, alpha, kind, 8, early_stopping == "never")
            assert result.sequences[0, 1:].tolist() == tokens
            assert result.sequences_scores[0].item() == pytest.approx(score, rel=1e-4)
        different += wu.sequences.tolist() != plain.sequences.tolist()
    if alpha > 0:
        assert different > 0
