"""What the stock trainers push at the end opens by its id, whichever `hub_strategy` they have."""

import json

import pytest

from builders.clean_processes import run_clean
from builders.hub_folders import hub_environment
from builders.hub_server import serve_hub
from builders.models import build_model
from reluformers.translation.tokenization import train_tokenizer

LINES = ["a dog runs", "a cat sleeps", "ein Hund rennt", "eine Katze schläft"]
STRATEGIES = ("end", "every_save", "checkpoint", "all_checkpoints")

TRANSLATION = """
    import sys, torch
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
    from transformers import DataCollatorForSeq2Seq, Seq2SeqTrainer, Seq2SeqTrainingArguments, TrainerCallback

    tokenizer = AutoTokenizer.from_pretrained("released", trust_remote_code=True)
    class WholePushes(TrainerCallback):
        # each push ends before the next save writes into the folder that it reads
        def on_save(self, *_, **__):
            trainer._finish_current_push()

    rows = [dict(tokenizer("a dog runs", text_target="ein Hund rennt"))] * 4
    for strategy in sys.argv[1:]:
        model = AutoModelForSeq2SeqLM.from_pretrained("released", trust_remote_code=True)
        arguments = Seq2SeqTrainingArguments(
            strategy, max_steps=2, save_steps=1, push_to_hub=True, hub_model_id=f"acme/{strategy}",
            hub_strategy=strategy, hub_always_push=True, use_cpu=True, report_to="none", disable_tqdm=True,
        )
        trainer = Seq2SeqTrainer(
            model, arguments, train_dataset=rows, processing_class=tokenizer,
            data_collator=DataCollatorForSeq2Seq(tokenizer, model=model), callbacks=[WholePushes()],
        )
        trainer.train()
        trainer.push_to_hub()
"""
OPEN = """
    import json, sys
    import transformers

    pushes = json.loads(sys.argv[1])
    for repo, revision in pushes:
        transformers.AutoModelForSeq2SeqLM.from_pretrained(repo, revision=revision, trust_remote_code=True)
    print("opened", len(pushes))
"""


@pytest.mark.slow
def test_the_last_push_of_a_stock_trainer_opens(tmp_path):
    tokenizer = train_tokenizer(LINES, vocab_size=60, min_frequency=1)
    tokenizer.save_pretrained(tmp_path / "released")
    build_model("reluformer", vocab_size=len(tokenizer)).save_pretrained(tmp_path / "released")
    with serve_hub() as hub:
        environment = {**hub_environment(hub, tmp_path / "home"), "ACCELERATE_USE_CPU": "true"}
        run_clean(TRANSLATION, tmp_path, *STRATEGIES, hidden=("datasets", "peft"), **environment)
        pushes = [
            (f"acme/{strategy}", list(hub.repos["models", f"acme/{strategy}"].commits)[-1]) for strategy in STRATEGIES
        ]
        environment["HF_HOME"] = str(tmp_path / "another")
        output = run_clean(OPEN, tmp_path, json.dumps(pushes), **environment)
    assert f"opened {len(pushes)}" in output
    code = {path.name for path in (tmp_path / "released").glob("*.py")}
    assert code == {path.name for path in (tmp_path / "every_save").glob("*.py")}
