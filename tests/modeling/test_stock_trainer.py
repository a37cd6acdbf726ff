"""Our models under the stock `Seq2SeqTrainer`, as someone fine-tunes who has never heard of this library."""

import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForSeq2SeqLM, DataCollatorForSeq2Seq, Seq2SeqTrainer, Seq2SeqTrainingArguments
from transformers.dynamic_module_utils import get_class_from_dynamic_module

from builders.models import build_model
from reluformers.translation.tokenization import train_tokenizer

WORDS = ["one", "two", "three", "four", "five", "six", "seven"]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer([" ".join(WORDS)] * 4, vocab_size=40, min_frequency=1)


@pytest.fixture(scope="module")
def dataset(tokenizer):
    lines = [" ".join(WORDS[(start + step) % 7] for step in range(3 + start % 3)) for start in range(16)]
    return Dataset.from_dict(dict(tokenizer(lines, text_target=[line[::-1] for line in lines])))


def test_remote_model_trains_evaluates_and_keeps_its_code(tokenizer, dataset, tmp_path):
    source = tmp_path / "source"
    model = build_model("reluformer", vocab_size=len(tokenizer))
    model.save_pretrained(source)
    name = f"modeling_seq2seq.{type(model).__name__}"
    remote = get_class_from_dynamic_module(name, str(source)).from_pretrained(source)
    assert type(remote) is not type(model)
    # what the Auto classes do when they open code from a folder
    type(remote).register_for_auto_class("AutoModelForSeq2SeqLM")
    type(remote.config).register_for_auto_class()
    arguments = Seq2SeqTrainingArguments(
        tmp_path / "run",
        max_steps=4,
        save_steps=4,
        learning_rate=1e-2,
        logging_steps=1,
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        predict_with_generate=True,
        generation_max_length=8,
    )
    trainer = Seq2SeqTrainer(
        remote,
        arguments,
        train_dataset=dataset,
        eval_dataset=dataset,
        processing_class=tokenizer,
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=remote),
        compute_metrics=lambda output: {"rows": len(output.predictions)},
    )
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < losses[0]
    assert trainer.evaluate()["eval_rows"] == 16
    arguments.predict_with_generate = False
    remote.config.use_cache = True  # A cache is no prediction.
    rows = Dataset.from_dict({"input_ids": [[5, 6, 2]] * 9, "decoder_input_ids": [[1, 5]] * 9})  # two batches
    logits, _ = trainer.predict(rows).predictions  # the other is of the encoder
    assert logits.shape == (9, 2, len(tokenizer))
    checkpoint = tmp_path / "run" / "checkpoint-4"
    assert list(checkpoint.glob("*.py"))
    assert not list((tmp_path / "run").glob("*.py"))
    assert (checkpoint / "tokenizer.json").is_file()
    assert not list(checkpoint.glob("pytorch_model*"))
    again = AutoModelForSeq2SeqLM.from_pretrained(checkpoint)
    ids = torch.tensor([dataset[0]["input_ids"]])
    torch.testing.assert_close(again(input_ids=ids, labels=ids).loss, remote.eval()(input_ids=ids, labels=ids).loss)
