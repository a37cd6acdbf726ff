"""Model cards: the whole text, what the Hub reads of it, and what must not get into it."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from huggingface_hub import ModelCard
from PIL import Image
from reluformers.configuration.configuration_attention import ATTENTION_PRESETS, AttentionConfig
from transformers import AutoModelForImageClassification, AutoModelForSeq2SeqLM

import reluformers
from builders.commands import run_command
from builders.finished_runs import image_run, translation_evaluation, translation_run, write_run
from builders.image_runs import CLASSES
from builders.image_runs import SIZES as IMAGE_SIZES
from builders.translation_runs import SIZES
from reluformers import seq2seq_config, vision_config
from reluformers.cards.card import write_card
from reluformers.cards.check import check_card, check_card_text
from reluformers.data_names import source_name
from reluformers.errors import UserError
from reluformers.examples import Example
from reluformers.families import FAMILIES
from reluformers.images import card as image_card
from reluformers.images.processing import build_image_processor
from reluformers.papers import QKNORM, RELA, RELU_VIT, RELUFORMER, attention_source, formula
from reluformers.translation import card as translation_card
from reluformers.translation.decoding import load_translation_model, translate
from reluformers.translation.tokenization import train_tokenizer

ROOT = Path(__file__).resolve().parents[2]
PINNED = Path(__file__).parent
ALPHA_ROWS = {
    "relu-vit-alpha0": "relu (α = 0)",
    "relu-vit-alpha0.5": "relu · L^−½",
    "relu-vit-alpha1.5": "relu · L^−1½",
}
PUBLISHED = sorted((ROOT / "model_cards").glob("*/README.md"))


@pytest.fixture
def fixed_answers(monkeypatch):
    """Answers that no change of weights changes."""

    def translations(folder, texts, output):
        return [Example(text, text.upper(), f"Example {number}") for number, text in enumerate(texts, start=1)]

    def labels(folder, images, output):
        output.mkdir(exist_ok=True)
        (output / "example_1.png").write_bytes(b"")
        return [Example("example_1.png", [{"label": "cat", "score": 0.9}, {"label": "dog", "score": 0.1}], "pet")]

    monkeypatch.setattr(translation_card, "answer_examples", translations)
    monkeypatch.setattr(image_card, "answer_examples", labels)


def write_full_card(folder: Path, **options) -> Path:
    softmax = translation_run(folder / "softmax", "softmax", bleu=36.57, zeros=0.0)
    return write_card(
        translation_run(folder / "run"),
        "someone/en-de-reluformer",
        baseline=softmax / "evaluation.json",
        dataset="bentrevett/multi30k",
        examples=["Two dogs | two cats."],
        hardware="one core of a CPU",
        notes=["A note on the scores."],
        **options,
    )


def saved_translation_model(folder: Path) -> Path:
    train_tokenizer([["red dog", "green tree"]], 100).save_pretrained(folder)
    config = seq2seq_config("rela", **{**SIZES, "vocab_size": 100})
    AutoModelForSeq2SeqLM.from_config(config).save_pretrained(folder)
    return folder


def saved_image_model(folder: Path) -> Path:
    names = dict(enumerate(CLASSES))
    config = vision_config(
        "relu-vit", **IMAGE_SIZES, id2label=names, label2id={name: label for label, name in names.items()}
    )
    model = AutoModelForImageClassification.from_config(config)
    torch.nn.init.normal_(model.classifier.weight)
    model.save_pretrained(folder)
    build_image_processor(config).save_pretrained(folder)
    return folder


@pytest.mark.usefixtures("fixed_answers")
class TestWholeCard:
    def test_of_a_translation_model(self, tmp_path):
        path = write_full_card(tmp_path)
        assert path == tmp_path / "run" / "README.md"
        assert path.read_text(encoding="utf-8") == (PINNED / "card_translation.md").read_text(encoding="utf-8")
        assert {item.name for item in path.parent.iterdir()} >= {"README.md", "attention.png", "config.json"}

    def test_of_an_image_model(self, tmp_path):
        folder = image_run(tmp_path / "run")
        path = write_card(folder, "someone/vit", revision="v2", licence="mit", examples=["pet.png"], output=tmp_path)
        assert path.read_text(encoding="utf-8") == (PINNED / "card_images.md").read_text(encoding="utf-8")
        assert not (folder / "README.md").exists()

    def test_of_a_model_that_nothing_is_known_about(self, tmp_path):
        config = seq2seq_config("qknorm", decoder_attention="softmax")
        path = write_card(write_run(tmp_path / "run", config), "someone/unknown")
        assert path.read_text(encoding="utf-8") == (PINNED / "card_unknown.md").read_text(encoding="utf-8")

    @pytest.mark.parametrize(
        ("attention", "needed"),
        [
            ({"attention": "entmax15"}, True),
            ({"attention": "softmax", "cross_attention": "sparsemax"}, True),
            ({"attention": "softmax"}, False),
        ],
    )
    def test_names_entmax_where_it_is_needed(self, tmp_path, attention, needed):
        path = write_card(write_run(tmp_path / "run", seq2seq_config("softmax", **attention)), "someone/unknown")
        assert ("`pip install entmax`" in path.read_text(encoding="utf-8")) == needed

    def test_the_hub_reads_the_results(self, tmp_path):
        data = ModelCard.load(write_full_card(tmp_path)).data
        measured = {result.metric_type: result for result in data.eval_results}
        assert measured["sacrebleu"].metric_value == 35.99
        assert measured["sacrebleu"].metric_args["signature"].startswith("nrefs:1|")
        assert measured["chrf"].dataset_type == "bentrevett/multi30k"
        assert data.model_name == "en-de-reluformer"
        assert data.widget[0]["output"] == {"text": "TWO DOGS | TWO CATS."}

    def test_a_card_that_is_there_stays(self, tmp_path):
        path = write_full_card(tmp_path)
        path.write_text("mine")
        with pytest.raises(UserError, match="is there already"):
            write_full_card(tmp_path)
        assert path.read_text() == "mine"
        write_full_card(tmp_path, overwrite=True)
        check_card(path)

    @pytest.mark.parametrize(
        ("key", "value"),
        [("split", "validation"), ("data", "other.jsonl"), ("rows", 9), ("decoding", {"num_beams": 4})],
    )
    def test_a_baseline_scored_otherwise_is_refused(self, tmp_path, key, value):
        other = tmp_path / "evaluation.json"
        # format 1 called the rows sentences
        written = {"rows": "sentences"}.get(key, key)
        other.write_text(json.dumps({**translation_evaluation(36, 0), written: value}))
        with pytest.raises(UserError, match=f"its {key} is .* evaluate both"):
            write_card(translation_run(tmp_path / "run"), "someone/x", baseline=other)
        assert not (tmp_path / "run" / "README.md").exists()

    def test_a_path_in_a_note_is_refused(self, tmp_path):
        with pytest.raises(UserError, match=r"a path of this machine, /home/someone/x\.log"):
            write_card(translation_run(tmp_path / "run"), "someone/x", notes=["See /home/someone/x.log."])
        assert not (tmp_path / "run" / "README.md").exists()

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"repo_id": "name-alone"}, "OWNER/NAME"),
            ({"licence": "apache2"}, "licence 'apache2' is none"),
            ({"dataset": "/data/multi30k"}, "must be its Hub id"),
            ({"revision": "a tag"}, "no name of a tag"),
            ({"evaluation": "missing.json"}, "no such file"),
        ],
    )
    def test_wrong_options_are_refused(self, tmp_path, options, message):
        with pytest.raises(UserError, match=message):
            write_card(translation_run(tmp_path / "run"), **{"repo_id": "someone/x", **options})

    def test_regional_languages_and_names_of_data(self, tmp_path):
        folder = translation_run(tmp_path / "run")
        evaluation = {**translation_evaluation(30, 0.5), "target_lang": "pt_BR", "data": ["/a/b/one.txt", "two.txt"]}
        (folder / "evaluation.json").write_text(json.dumps(evaluation))
        data = ModelCard.load(write_card(folder, "someone/x")).data
        assert data.language == ["en", "pt"]
        assert data.language_bcp47 == ["pt_BR"]
        assert data.eval_results[0].dataset_name == "one.txt, two.txt"

    def test_the_time_of_a_resumed_run_is_not_known(self, tmp_path):
        folder = translation_run(tmp_path / "run")
        results = json.loads((folder / "results.json").read_text())
        del results["training_seconds"]
        (folder / "results.json").write_text(json.dumps(results))
        assert "| time |" not in write_card(folder, "someone/x").read_text()


def test_the_command_shows_what_the_model_answers(tmp_path, monkeypatch, capsys):
    folder = saved_translation_model(tmp_path / "model")
    output = tmp_path / "card"
    run_command("card", folder, "--repo_id", "a/b", "--example", "red dog", "--output", output)
    assert capsys.readouterr().out.strip() == str(output / "README.md")
    (widget,) = ModelCard.load(output / "README.md").data.widget
    model, tokenizers = load_translation_model(folder)
    assert widget["text"] == "red dog"
    assert widget["output"]["text"] == translate(model, tokenizers, ["red dog"], num_beams=1)[0]


def test_the_command_shows_what_a_classifier_answers(tmp_path, monkeypatch):
    folder, picture = saved_image_model(tmp_path / "model"), tmp_path / "noise.jpg"
    pixels = np.random.default_rng(0).integers(0, 255, (30, 700, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(picture)
    run_command("card", folder, "--repo_id", "a/b", "--example", picture)
    (widget,) = ModelCard.load(folder / "README.md").data.widget
    assert (widget["src"], widget["example_title"]) == ("example_1.png", "noise")
    with Image.open(folder / "example_1.png") as shown:
        assert shown.width == 512
    assert len(widget["output"]) == 5
    assert {answer["label"] for answer in widget["output"]} <= set(CLASSES)
    shares = [answer["score"] for answer in widget["output"]]
    assert shares == sorted(shares, reverse=True)


@pytest.mark.parametrize("example", ["", "words.txt"])
def test_examples_that_are_none(tmp_path, monkeypatch, capsys, example):
    folder = (saved_image_model if example else saved_translation_model)(tmp_path / "model")
    with pytest.raises(SystemExit):
        run_command("card", folder, "--repo_id", "a/b", "--example", example)
    assert re.fullmatch(r"error: .*(is empty|is no picture).*\n", capsys.readouterr().err)
    assert not (folder / "README.md").exists()


def test_a_folder_without_a_model(tmp_path, monkeypatch, capsys):
    with pytest.raises(SystemExit):
        run_command("card", tmp_path, "--repo_id", "a/b")
    assert capsys.readouterr().err == f"error: {tmp_path}: is not the folder of a saved model, it has no config.json\n"


@pytest.mark.parametrize("name", ["recipe.yaml", "results.json", "evaluation.json", "log_history.json"])
def test_damaged_files_are_named(tmp_path, name):
    folder = translation_run(tmp_path / "run")
    (folder / name).write_text("{")
    with pytest.raises(UserError, match=re.escape(str(folder / name))):
        write_card(folder, "someone/x")


VALID = (PINNED / "card_translation.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("library_name: transformers\n", "", "library_name is None"),
        ("pipeline_tag: translation", "pipeline_tag: translate", "pipeline_tag is 'translate'"),
        ("license: apache-2.0", "license: Apache-2.0", "license is 'Apache-2.0'"),
        ("license: apache-2.0\n", "", "license is None"),
        ("license: apache-2.0", "license: []", "license is None"),
        ("license: apache-2.0", "license: {a: b}", "license is {'a': 'b'}"),
        ("license: apache-2.0", "license: [[mit]]", r"license is \['mit'\]"),
        ("license: apache-2.0", "license: apache-2.0\n5: a", "cannot be read"),
        ("widget:\n- text", "widget:\n- src: 5\n  text", "widget must be"),
        ("widget:\n- text", "widget:\n- src:\n  text", "widget must be"),
        ("- en\n", "- english\n", "ISO 639"),
        ("- en\n", "- no\n", "language is .* quote no"),
        ("datasets:\n- bentrevett/multi30k", "datasets:\n- /data/multi30k", "datasets has '/data/multi30k'"),
        ("widget:\n- text", "widget:\n- input", "widget must be"),
        ("      type: bentrevett/multi30k\n", "", "model-index is not complete"),
        ("      value: 35.99\n", "", "a metric without a value"),
        ("---\ndatasets", "datasets", "has no metadata"),
        ("license: apache-2.0", "license: [", "are no YAML"),
        ("## Limits", "[More Information Needed]", "still holds"),
        ("## Limits", "See ~/runs/x and C:\\runs.", "a path of this machine, ~/runs/x"),
        ("## Limits", "hf_" + "a1B2" * 9, "holds a token of the Hub; take it out"),
        ("attention.png", "missing.png", "shows missing.png, but there is no such file"),
    ],
)
def test_what_a_card_must_not_be(tmp_path, old, new, message):
    (tmp_path / "attention.png").write_bytes(b"")
    check_card_text(VALID, tmp_path / "README.md")
    assert old in VALID
    (tmp_path / "README.md").write_text(VALID.replace(old, new), encoding="utf-8")
    with pytest.raises(UserError, match=message) as caught:
        check_card(tmp_path / "README.md")
    assert "\n" not in str(caught.value)


def test_a_card_without_examples_may_say_so(tmp_path):
    text = "---\nlibrary_name: transformers\npipeline_tag: translation\nlicense: [mit]\nwidget:\n---\n# Tiny\n"
    assert check_card_text(text, tmp_path / "README.md").data.license == ["mit"]


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("evaluation", {"bleu": 30.0}, r"evaluation\.json: bleu is 30\.0, but must be a mapping"),
        ("evaluation", {"bleu": {"value": 30.0}}, r"scores\.bleu\.value is None, but must be float"),
        ("evaluation", {"source_lang": 5}, r"data\.source_lang is 5, but must be str or null"),
        ("evaluation", {"attention": [1]}, r"attention is \[1\], but must be a mapping"),
        ("recipe", {"training": "fast"}, r"recipe\.yaml: section training is 'fast', but must be a mapping"),
        ("recipe", {"data": {"target_lang": False}}, r"data\.target_lang is False, but must be a string"),
        ("log_history", [1, 2], r"log_history\.json: entry 1 is 1, but must be a mapping"),
    ],
)
def test_files_of_another_shape_are_one_line(tmp_path, file, change, message):
    folder = translation_run(tmp_path / "run")
    path = folder / ("recipe.yaml" if file == "recipe" else f"{file}.json")
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**content, **change} if isinstance(change, dict) else change))
    with pytest.raises(UserError, match=message) as caught:
        write_card(folder, "someone/en-de")
    assert "\n" not in str(caught.value)
    assert not (folder / "README.md").exists()


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("/home/someone/data/train.jsonl.gz", "train.jsonl.gz"),
        (r"C:\data\pictures", "pictures"),
        ("data/train.parquet", "train.parquet"),
        ("runs/data/", "data"),
        ("someone/pictures", "someone/pictures"),
        ({"source": "/a/b/train.en", "target": "/a/b/train.de"}, "train.en, train.de"),
        (None, None),
        ([], None),
    ],
)
def test_sources_are_named_without_their_place(source, name):
    assert source_name(source) == name


@pytest.mark.parametrize("preset", ATTENTION_PRESETS)
def test_every_preset_has_a_paper_and_a_formula(preset):
    attention = AttentionConfig.parse(preset)
    source = attention_source(attention, seq2seq_config("softmax"))
    assert source.paper.arxiv in source.paper.bibtex
    assert "variant" not in source.place
    assert formula(attention, 64)[1].startswith(f"weight  s_ij = {attention.activation}(z_ij)")


def test_formulas_say_what_is_trained():
    attention = AttentionConfig(
        score="cosine",
        learned_scale=True,
        scale_length=31,
        activation="relu2",
        learned_threshold=True,
        learned_length_exponent=True,
        length_coefficient=0.5,
        output_gate="silu",
    )
    assert formula(attention, 64) == [
        "score   z_ij = a · cos(q_i, k_j),  a learned, 9.861 at the start",
        "weight  s_ij = relu2(z_ij − θ) / (0.5 · n_i^α),  n_i the number of keys that i sees",
        "output  o_i  = (Σ_j s_ij v_j) ⊙ silu(W x_i)",
    ]


def test_relu_without_a_divisor_is_another_paper_for_images():
    relu = AttentionConfig.parse("relu")
    for preset in ("relu-vit", "softmax"):
        assert attention_source(relu, vision_config(preset)).paper.key.startswith("wortsman")
    assert attention_source(relu, seq2seq_config("relu")).paper.key.startswith("shen")


def test_an_attention_of_no_name_varies_that_of_its_family():
    own = AttentionConfig(activation="relu2", length_exponent=0.25)
    for config_class in FAMILIES:
        source = attention_source(own, config_class())
        assert source.place.startswith("a variant of ")
        assert source.paper == attention_source(AttentionConfig.parse(config_class.attention), config_class()).paper


def test_the_citation_file_names_the_papers():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    titles = {reference["title"] for reference in citation["references"]}
    assert {paper.title for paper in (RELUFORMER, RELA, QKNORM, RELU_VIT)} <= titles
    assert len(titles) == 5
    assert citation["version"] == reluformers.__version__


def documented_score(name: str) -> float:
    """The first number of a model's row in docs/results.md."""
    text = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    translation, images = text.split("## CIFAR-10")
    preset = name.removeprefix("multi30k-en-de-").removeprefix("cifar10-")
    row = ALPHA_ROWS.get(preset, f"`{preset}`")
    section = images if name.startswith("cifar10") else translation
    return float(re.search(rf"^\| {re.escape(row)} \| ([\d.]+)", section, re.MULTILINE)[1])


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.parent.name)
def test_cards_of_the_repository_are_valid_and_agree_with_the_results(path):
    card = check_card(path)
    assert card.data.model_name == path.parent.name
    score = card.data.eval_results[0]
    if score.metric_type == "accuracy":  # the document has that of the trainer, in bf16
        assert 100 * score.metric_value == pytest.approx(documented_score(path.parent.name), abs=0.1)
    else:
        assert score.metric_value == documented_score(path.parent.name)
    assert f'"reluformers/{path.parent.name}", revision="v1"' in card.text


def test_every_result_has_a_card():
    names = {path.parent.name for path in PUBLISHED}
    assert names >= {f"multi30k-en-de-{preset}" for preset in ("softmax", "reluformer", "rela-g", "qknorm", "relu")}
    assert names >= {f"cifar10-{preset}" for preset in ("softmax", "relu-vit", "rela-g", "qknorm")}
    assert len(names) == 12
