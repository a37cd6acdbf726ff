"""Flows of other libraries on models whose attention is ours, by name and exchanged: what a user runs as it stands.

Each needs its library (`pip install trl lm-eval`) and is skipped without it.
"""

import contextlib
import json
import socket
import subprocess
import sys
import time
import urllib.request

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

from reluformers import exchange_attention

pytestmark = pytest.mark.slow
WORDS = ["<pad>", "<eos>", "<unk>", "the", "a", "cat", "dog", "sees", "hears", "red", "big", ".", "and", "user"]
TEXTS = ["the cat sees a dog .", "a big dog hears the red cat and the dog .", "the dog .", "a cat and a dog ."] * 4
BY_NAME = "relu_attention"


def build_tokenizer() -> PreTrainedTokenizerFast:
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", model_max_length=64
    )
    tokenizer.chat_template = "{% for m in messages %}{{ m['role'] }} {{ m['content'] }} {{ eos_token }} {% endfor %}"
    return tokenizer


def build_model(attention: str | None = None):
    torch.manual_seed(0)
    config = LlamaConfig(
        **{"vocab_size": len(WORDS), "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2},
        **{"num_attention_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0, "eos_token_id": 1},
    )
    return AutoModelForCausalLM.from_config(config, attn_implementation=attention or "eager")


@pytest.fixture(params=["by name", "exchanged"])
def folder(request, tmp_path):
    """A saved folder of a Llama with ReLU attention."""
    if request.param == "by name":
        model = build_model(BY_NAME)
    else:
        model = build_model()
        exchange_attention(model, "relu-vit")
    model.save_pretrained(tmp_path / "model")
    build_tokenizer().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def open_folder(folder):
    is_exchanged = "auto_map" in json.loads((folder / "config.json").read_text())
    options = {"trust_remote_code": True} if is_exchanged else {"attn_implementation": BY_NAME}
    return AutoModelForCausalLM.from_pretrained(folder, **options)


def sft_losses(folder, output, **options) -> list[float]:
    trl, datasets = pytest.importorskip("trl"), pytest.importorskip("datasets")
    arguments = trl.SFTConfig(
        output_dir=str(output), max_steps=2, per_device_train_batch_size=4, logging_steps=1, report_to="none",
        save_strategy="no", use_cpu=True, bf16=False, shuffle_dataset=False, seed=3, **options,
    )  # fmt: skip
    data = datasets.Dataset.from_dict({"text": TEXTS})
    trainer = trl.SFTTrainer(
        open_folder(folder), args=arguments, train_dataset=data, processing_class=build_tokenizer()
    )
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def test_rows_without_padding_train_as_padded_ones(folder, tmp_path):
    padded = sft_losses(folder, tmp_path / "padded", max_length=None)
    flattened = sft_losses(folder, tmp_path / "flattened", max_length=None, padding_free=True)
    assert flattened == pytest.approx(padded, rel=1e-4)


def test_preferences_are_trained(folder, tmp_path):
    trl, datasets = pytest.importorskip("trl"), pytest.importorskip("datasets")
    rows = {"prompt": ["the cat", "a dog"] * 4, "chosen": [" sees a dog ."] * 8, "rejected": [" hears ."] * 8}
    arguments = trl.DPOConfig(
        output_dir=str(tmp_path), max_steps=1, per_device_train_batch_size=4, logging_steps=1, report_to="none",
        save_strategy="no", use_cpu=True, bf16=False,
    )  # fmt: skip
    model, data = open_folder(folder), datasets.Dataset.from_dict(rows)
    trainer = trl.DPOTrainer(model, args=arguments, train_dataset=data, processing_class=build_tokenizer())
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses == pytest.approx([0.6931], abs=1e-3)  # log 2: policy and reference are still one


def test_harness_scores_a_folder(folder, tmp_path):
    pytest.importorskip("lm_eval")
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    scorer = HFLM(pretrained=open_folder(folder), tokenizer=build_tokenizer(), batch_size=2, device="cpu")
    pairs = [("the cat", " sees a dog ."), ("a big dog hears", " the red cat")]
    requests = [Instance("loglikelihood", {}, pair, index) for index, pair in enumerate(pairs)]
    scores = [score for score, _ in scorer.loglikelihood(requests)]
    model, tokenizer = open_folder(folder), build_tokenizer()
    for (context, rest), score in zip(pairs, scores, strict=True):
        ids = tokenizer(context + rest, return_tensors="pt").input_ids
        logs = model(ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
        assert score == pytest.approx(logs[-len(rest.split()) :].sum().item(), abs=1e-4)


def free_port() -> int:
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_transformers_serves_an_exchanged_folder(tmp_path):
    """`transformers serve` opens a folder by AutoModel alone and knows no names of attentions but its own."""
    pytest.importorskip("openai")
    folder, model = tmp_path / "model", build_model()
    exchange_attention(model, "relu-vit")
    model.save_pretrained(folder)
    build_tokenizer().save_pretrained(folder)
    port = free_port()
    start = "import sys; from transformers.cli.transformers import main; sys.exit(main())"
    options = ["--host", "127.0.0.1", "--port", str(port), "--device", "cpu", "--trust-remote-code"]
    server = subprocess.Popen(
        [sys.executable, "-c", start, "serve", *options], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    question = {
        "model": str(folder), "messages": [{"role": "user", "content": "the cat"}], "max_tokens": 5, "temperature": 0,
    }  # fmt: skip
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/chat/completions",
        data=json.dumps(question).encode(),
        headers={"Content-Type": "application/json"},
    )
    try:
        for _ in range(60):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            assert server.poll() is None, server.stderr.read()[-2000:]
            time.sleep(1)
        with urllib.request.urlopen(request, timeout=120) as response:
            answer = json.loads(response.read())["choices"][0]["message"]["content"]
    finally:
        server.terminate()
        server.wait(20)
    tokenizer = build_tokenizer()
    text = tokenizer.apply_chat_template(question["messages"], tokenize=False, add_generation_prompt=True)
    inputs = tokenizer(text, return_tensors="pt")
    found = open_folder(folder).generate(**inputs, max_new_tokens=5, do_sample=False)
    expected = tokenizer.decode(found[0, inputs.input_ids.shape[1] :], skip_special_tokens=True)
    assert answer.split() == expected.split()
