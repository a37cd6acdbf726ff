"""Training runs on a toy language: learning, saving, resuming, averaging, one gradient however it is split."""

import dataclasses
import json
import random

import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from builders.translation_runs import check_accumulated, make_recipe, training_logs
from reluformers.tasks import load_recipe
from reluformers.translation.decoding import load_translation_model, translate
from reluformers.translation.run import _default_max_length, build_model, prepare_data, train_translation
from reluformers.translation.trainer import TranslationTrainer

pytestmark = pytest.mark.xdist_group("translation training")


@pytest.fixture(scope="module")
def finished(files, tmp_path_factory):
    """A finished run of 4 epochs: its folder and results."""
    folder = tmp_path_factory.mktemp("runs") / "finished"
    recipe = make_recipe(files, num_train_epochs=4, average_last=2, eval_strategy="epoch", max_grad_norm=0.5)
    recipe.decoding.num_beams = 2
    lines = []
    results = train_translation(recipe, folder, report=lines.append)
    return folder, results, lines


@pytest.fixture(scope="module")
def prepared(files, tmp_path_factory):
    """Token ids and tokenizers of the toy language."""
    return prepare_data(make_recipe(files), tmp_path_factory.mktemp("tokenizer"), reuse_tokenizers=False)


def make_trainer(prepared, folder, *, preset="reluformer", train=None, model_fields=None, **training):
    recipe = make_recipe({}, preset=preset)
    recipe.model |= {"dropout": 0.0, "attention_dropout": 0.0, **(model_fields or {})}
    recipe.training |= {"save_strategy": "no", **training}
    torch.manual_seed(0)
    return TranslationTrainer(
        build_model(recipe, prepared),
        recipe.training_arguments(folder),
        train_dataset=prepared.train if train is None else train,
        eval_dataset=prepared.evaluation["validation"],
        processing_class=prepared.tokenizers[0],
        target_tokenizer=prepared.tokenizers[1],
    )


def test_the_loss_falls_and_the_log_says_what_happened(finished):
    folder, results, lines = finished
    logs = training_logs(folder)
    assert logs[-1]["loss"] < 0.9 * logs[0]["loss"]
    for entry in logs:
        assert entry["regularization_loss"] > 0
        assert 0 <= entry["null_rate"] < 1
        assert entry["source_tokens_per_second"] > 0
    history = json.loads((folder / "log_history.json").read_text())
    evaluations = [entry for entry in history if "eval_bleu" in entry]
    assert [entry["epoch"] for entry in evaluations] == [1, 2, 3, 4]
    assert evaluations[-1]["eval_loss"] < evaluations[0]["eval_loss"]
    assert lines[-1] == f"validation: BLEU {results['validation_bleu']:.2f}, loss {results['validation_loss']:.3f}"


def test_the_folder_opens_with_everything_that_belongs_to_it(finished):
    folder, results, _ = finished
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForSeq2SeqLM.from_pretrained(folder)
    assert model.config.vocab_size == len(tokenizer)
    assert model.config.use_cache
    assert model.generation_config.num_beams == 2
    assert model.num_parameters() == results["parameters"]
    output = model.generate(**tokenizer(["red dog"], return_tensors="pt"))
    assert output.shape[1] <= 21
    assert json.loads((folder / "results.json").read_text()) == results
    assert load_recipe(folder / "recipe.yaml").data.train["source"].endswith("train.en")
    assert (folder / "curves.png").stat().st_size > 0
    names = {path.name for path in folder.iterdir()}
    assert not {"training_args.bin", "unfinished", "averaged", "pytorch_model.bin"} & names


def test_the_final_weights_are_the_mean_of_the_last_checkpoints(finished):
    folder, results, _ = finished
    checkpoints = sorted(folder.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    assert len(checkpoints) == 4
    last = [load_file(path / "model.safetensors") for path in checkpoints[-2:]]
    for name, weight in load_file(folder / "model.safetensors").items():
        torch.testing.assert_close(weight, (last[0][name] + last[1][name]) / 2)
    assert int(checkpoints[-1].name.split("-")[1]) == results["steps"]


def equal_rows(prepared, rows: int) -> Dataset:
    """Rows of 6 source and 6 target tokens."""
    rng = random.Random(0)
    size = len(prepared.tokenizers[0])
    columns = {name: [[rng.randrange(4, size) for _ in range(5)] + [2] for _ in range(rows)] for name in ("s", "t")}
    return Dataset.from_dict({"input_ids": columns["s"], "labels": columns["t"]})


def test_accumulated_halves_are_the_whole_batch(prepared, tmp_path):
    options = {"train": equal_rows(prepared, 8), "max_steps": 2}
    whole = make_trainer(prepared, tmp_path, max_tokens=48, **options)
    halves = make_trainer(prepared, tmp_path, max_tokens=24, gradient_accumulation_steps=2, **options)
    logs = check_accumulated(whole, halves)
    assert whole.state.global_step == halves.state.global_step == 2
    losses = [[entry["regularization_loss"] for entry in log] for log in logs]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


def test_evaluation_is_the_loss_per_token_and_takes_rows_over_the_budget(prepared, tmp_path):
    trainer = make_trainer(prepared, tmp_path, max_tokens=8)
    metrics = trainer.evaluate()
    dataset = prepared.evaluation["validation"]
    batch = trainer.data_collator([dataset[row] for row in range(len(dataset))])
    with torch.no_grad():
        expected = trainer.model.eval()(**batch).loss.item()
    assert metrics["eval_loss"] == pytest.approx(expected, rel=1e-5)
    assert 0 <= metrics["eval_bleu"] <= 100


def test_translations_of_all_processes_come_in_order(prepared, tmp_path, monkeypatch):
    trainer = make_trainer(prepared, tmp_path)
    parts = []

    def gather(part):
        parts.append(part)
        return [pair for part in parts for pair in part]

    monkeypatch.setattr("reluformers.translation.trainer.gather_object", gather)
    monkeypatch.setattr(
        "reluformers.translation.trainer.translate", lambda *args, **_: [text.upper() for text in args[2]]
    )
    monkeypatch.setattr(type(trainer.args), "world_size", 4)
    for rank in range(4):  # the last one has nothing to do
        monkeypatch.setattr(type(trainer.args), "process_index", rank)
        translations = trainer.translations(["a", "b", "c"])
    assert translations == ["A", "B", "C"]
    assert [len(part) for part in parts] == [1, 1, 1, 0]


def test_the_noam_schedule_reaches_the_optimizer(prepared, tmp_path):
    trainer = make_trainer(
        prepared, tmp_path, schedule="noam", learning_rate=2.0, warmup_steps=3, max_steps=5, max_tokens=200
    )
    trainer.train()
    used = [entry["learning_rate"] for entry in training_logs(trainer)]
    expected = [2.0 * 16**-0.5 * min(update**-0.5, update * 3**-1.5) for update in range(1, 6)]
    assert used == pytest.approx(expected)


def test_the_length_of_qknorm_is_measured(prepared):
    lengths = sorted(len(row) for name in ("input_ids", "labels") for row in prepared.train[name])
    measured = make_recipe({}, preset="qknorm")
    config = build_model(measured, prepared).config
    length = config.attention_for("cross").scale_length
    assert lengths[round(0.97 * len(lengths))] <= length <= lengths[round(0.98 * len(lengths))]
    given = make_recipe({}, preset="qknorm")
    given.model["attention"] = {"preset": "qknorm", "scale_length": 50}
    given.model["cross_attention"] = "qknorm"
    config = build_model(given, prepared).config
    assert config.attention_for("encoder").scale_length == 50
    assert config.attention_for("cross").scale_length == length


def test_two_vocabularies_have_no_matrix_in_common(files, tmp_path):
    recipe = make_recipe(files)
    recipe.model["tying"] = "decoder"
    recipe.tokenizer.shared = False
    recipe.tokenizer.vocab_size = 60
    recipe.tokenizer.max_digits = 2
    prepared = prepare_data(recipe, tmp_path, reuse_tokenizers=False)
    source, target = prepared.tokenizers
    assert source.get_vocab() != target.get_vocab()
    assert r"▁?\\d{1,2}" in source.backend_tokenizer.to_str()
    config = build_model(recipe, prepared).config
    assert (config.vocab_size, config.decoder_vocab_size) == (len(source), len(target))
    recipe.model["tying"] = "all"
    with pytest.raises(ValueError, match=r"set model\.tying=decoder"):
        build_model(recipe, prepared)


def test_an_evaluation_that_fails_loses_no_weights(files, tmp_path, monkeypatch):
    def fail(*arguments):
        raise ValueError("out of memory")

    monkeypatch.setattr("reluformers.translation.run._score", fail)
    with pytest.raises(ValueError, match="out of memory"):
        train_translation(make_recipe(files, max_steps=1, save_strategy="no"), tmp_path)
    assert sorted(path.parent.name for path in tmp_path.rglob("model.safetensors")) == ["unfinished"]


@pytest.mark.parametrize(("tokens", "longest"), [(None, 7), (5, 7), (30, 30), (64, 40)])
def test_documents_are_written_as_long_as_they_were_learned(files, tokens, longest):
    recipe = make_recipe(files)
    recipe.decoding.max_new_tokens = 7
    recipe.data.document_tokens = tokens
    assert _default_max_length(recipe, recipe.model_config()) == 1 + longest


def test_the_results_show_what_the_model_writes(finished, files):
    folder, results, _ = finished
    examples = results["examples"]
    assert len(examples) == 5
    model, tokenizers = load_translation_model(folder)
    outputs = translate(model, tokenizers, [example["source"] for example in examples], num_beams=2)
    assert outputs == [example["output"] for example in examples]


def test_bleu_in_training_is_decoded_as_the_recipe_says(files, tmp_path, monkeypatch):
    recipe = make_recipe(
        files, max_steps=1, eval_strategy="steps", eval_steps=1, generation_num_beams=2, save_strategy="no"
    )
    recipe.decoding = dataclasses.replace(recipe.decoding, num_beams=3, length_penalty=0.6, penalty="wu")
    seen = []

    def translate(model, tokenizers, texts, **options):
        seen.append(options)
        return texts

    monkeypatch.setattr("reluformers.translation.trainer.translate", translate)
    train_translation(recipe, tmp_path / "run")
    assert [options.pop("num_beams") for options in seen] == [2, 3]
    assert seen[0] == seen[1]
    assert (seen[0]["penalty"], seen[0]["length_penalty"]) == ("wu", 0.6)
