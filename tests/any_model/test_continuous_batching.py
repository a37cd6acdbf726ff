"""Continuous batching: requests of many lengths in one row, with the tokens of `generate`."""

import inspect

import pytest
import torch
from transformers import GenerationConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig
from transformers.generation.continuous_batching import ContinuousBatchingManager

from reluformers import exchange_attention

from .test_by_name import build

if "auto_switch_to_flash" not in inspect.signature(ContinuousBatchingManager.switch_to_cb_friendly_attn).parameters:
    pytest.skip("attentions update the cache in this transformers", allow_module_level=True)

SETTINGS = GenerationConfig(max_new_tokens=4, do_sample=False, pad_token_id=0, eos_token_id=98)
# small batches of tokens: prompts are read in pieces, beside requests that go on
BATCHES = ContinuousBatchingConfig(num_blocks=16, page_size=16, max_batch_tokens=20, max_blocks_per_request=0)
PROMPTS = [torch.arange(3, 3 + length).remainder(95).add(length % 3).tolist() for length in (5, 9, 40, 1, 17, 12, 26)]


def new_tokens(model, prompt):
    return model.generate(torch.tensor([prompt]), generation_config=SETTINGS)[0, len(prompt) :].tolist()


def test_a_cancelled_request_changes_none_of_the_others():
    model = build("llama", "relu_attention")
    options = {"generation_config": SETTINGS, "continuous_batching_config": BATCHES, "warmup": False}
    found = {}
    with model.continuous_batching_context_manager(**options) as manager:
        for number, prompt in enumerate(PROMPTS):
            manager.add_request(prompt, request_id=str(number), max_new_tokens=4)
        manager.cancel_request("2")
        while len(found) < len(PROMPTS) - 1:
            result = manager.get_result(timeout=20)
            assert result is not None
            if result.is_finished() and result.request_id != "2":
                found[int(result.request_id)] = result.generated_tokens
    assert found == {number: new_tokens(model, PROMPTS[number]) for number in range(len(PROMPTS)) if number != 2}


@pytest.mark.parametrize(
    ("name", "attention"),
    [
        ("llama", "sdpa"),
        ("mistral", "relu_sum_attention"),
        ("gemma3", "entmax15_attention"),
        ("mistral", "exchanged"),
    ],
)
def test_batches_of_requests_have_the_tokens_of_generate(name, attention):
    model = build(name, "sdpa" if attention == "exchanged" else attention)
    if attention == "exchanged":
        exchange_attention(model, "rela-g")
    before = model.config._attn_implementation
    outputs = model.generate_batch(
        PROMPTS, generation_config=SETTINGS, continuous_batching_config=BATCHES, warmup=False, progress_bar=False
    )
    found = {tuple(output.prompt_ids): output.generated_tokens for output in outputs.values()}
    assert found == {tuple(prompt): new_tokens(model, prompt) for prompt in PROMPTS}
    assert model.config._attn_implementation == before
