"""Recipes: overrides, checks with helpful messages, and the recipes of the repository."""

from contextlib import nullcontext
from pathlib import Path

import pytest

from reluformers.configuration.configuration_attention import ATTENTION_PRESETS
from reluformers.data.sources import check_apart
from reluformers.images.recipe import ImageRecipe
from reluformers.tasks import load_recipe
from reluformers.translation.recipe import TranslationRecipe

RECIPES = sorted((Path(__file__).parents[2] / "scripts" / "recipes").glob("*.yaml"))


@pytest.fixture
def recipe_file(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(
        "task: translation\nmodel:\n  preset: reluformer\n  d_model: 16\n"
        "data:\n  source_lang: en\n  target_lang: de\n"
        "training:\n  learning_rate: 1e-3\n  max_tokens: 100\n"
    )
    return path


def test_overrides_are_yaml(recipe_file):
    recipe = load_recipe(
        recipe_file,
        [
            "model.preset=qknorm",
            "model.attention={score: cosine, scale_length: 50}",
            "training.lr_scheduler_kwargs.factor=0.5",
            "tokenizer.shared=false",
            "data.test=null",
        ],
    )
    assert recipe.model["d_model"] == 16
    assert recipe.model_config().attention_for("cross").scale_length == 50
    assert recipe.training["learning_rate"] == 1e-3
    assert recipe.training["lr_scheduler_kwargs"] == {"factor": 0.5}
    assert recipe.tokenizer.shared is False
    assert recipe.data.test is None


@pytest.mark.parametrize(
    ("change", "value"),
    [
        ("training.seed=0100", 100),
        ("training.max_tokens=0x10", 16),
        ("training.learning_rate=1e-3", 0.001),
        ("training.run_name=1:30", "1:30"),
        ("training.run_name=true", "true"),
        ("training.run_name=null", None),
        ("training.bf16=True", True),
        ("training.lr_scheduler_kwargs={a: 010, b: 1e-3, c: no, d: 1:30, no: [07, '07']}",
         {"a": 10, "b": 0.001, "c": "no", "d": "1:30", "no": [7, "07"]}),
        ("data.train=[010, 1e3]", ["010", "1e3"]),
        ("data.train={source: 010, target: no}", {"source": "010", "target": "no"}),
        ("data.revision=1e5", "1e5"),
        ("decoding.num_beams=04", 4),
        ("model.d_model=0128", 128),
        ("model.dropout=1e-1", 0.1),
        ("model.attention={scale_length: 050, activation: relu}", {"scale_length": 50, "activation": "relu"}),
    ],
)  # fmt: skip
def test_a_value_is_read_as_the_type_of_its_field(tmp_path, change, value):
    section, key = change.partition("=")[0].split(".")
    file = tmp_path / "recipe.yaml"
    for text, changes in (("", [change]), (f"{section}: {{{key}: {change.partition('=')[2]}}}\n", [])):
        file.write_text(f"task: translation\n{text}")
        owner = getattr(load_recipe(file, changes), section)
        read = owner[key] if isinstance(owner, dict) else getattr(owner, key)
        assert (read, type(read)) == (value, type(value))


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("training: {seed: 1}\ntraining: {max_steps: 2}\n", []),
        ("", ["training.lr_scheduler_kwargs={a: 1, a: 2}"]),
        ("", ["training.seed=1", "training.max_steps=2", "training.seed=2"]),
    ],
)
def test_a_key_given_twice_is_refused(tmp_path, text, changes):
    (tmp_path / "recipe.yaml").write_text(f"task: translation\n{text}")
    with pytest.raises(ValueError, match="given twice"):
        load_recipe(tmp_path / "recipe.yaml", changes)


@pytest.mark.parametrize(
    ("recipe", "change", "field"),
    [
        (TranslationRecipe, "modle.preset=relu", "'modle'; the nearest allowed is 'model'"),
        (TranslationRecipe, "model.d_modell=8", "'model.d_modell'"),
        (TranslationRecipe, "training.output_dir=x", "'training.output_dir'"),
        (TranslationRecipe, "model.vocab_size=8", "model.vocab_size"),
        (TranslationRecipe, "training.max_tokens=true", "training.max_tokens"),
        (TranslationRecipe, "decoding.penalty=gnmt", "decoding.penalty"),
        (TranslationRecipe, "decoding.num_beams=0", "decoding.num_beams"),
        (TranslationRecipe, "data.train={source: [a], target: b}", "data.train"),
        (TranslationRecipe, "training.seed=1:30", "'1:30'"),
        (TranslationRecipe, "training.learning_rate=nan", "training.learning_rate"),
        (ImageRecipe, "augmentation.crop=square", "augmentation.crop"),
    ],
)
def test_a_wrong_value_is_refused_by_name(tmp_path, recipe, change, field):
    (tmp_path / "recipe.yaml").write_text(f"task: {recipe.task}\ntraining: {{seed: 1}}\n")
    with pytest.raises(ValueError, match=field):
        load_recipe(tmp_path / "recipe.yaml", [change])


def test_a_saved_recipe_reads_the_same_without_tokens(recipe_file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("data/multi30k").mkdir(parents=True)
    changes = ["data.train={source: a.en, target: a.de}", "training.adam_epsilon=1e-9", "data.revision='1e5'"]
    changes += ["training.lr_scheduler_kwargs={a: '1e5', b: '.inf', c: .inf, d: '010', e: 'null'}"]
    changes += ["data.source_lang=no", "data.path=data/multi30k", "training.hub_token=hf_secret"]
    recipe = load_recipe(recipe_file, changes)
    recipe.save("saved.yaml")
    assert recipe.training.pop("hub_token") == "hf_secret"
    recipe.data.path = "./data/multi30k"
    assert load_recipe("saved.yaml") == recipe


@pytest.mark.parametrize(
    ("training", "field"),
    [
        ({"schedule": "warmup_then_plateau", "eval_strategy": "no"}, "warmup_then_plateau"),
        ({"schedule": "warmup_then_plateau", "eval_strategy": "epoch", "evaluate_bleu": False}, "warmup_then_plateau"),
        ({"label_smoothing_factor": 0.1}, "label_smoothing_factor"),
        ({"average_last": 5, "ema_decay": 0.9}, "average_last and ema_decay"),
        ({"ema_decay": 1.0}, "ema_decay"),
        ({"early_stopping_patience": 0, "eval_strategy": "epoch"}, "early_stopping_patience is 0"),
    ],
)
def test_training_values_that_do_not_go_together(tmp_path, training, field):
    with pytest.raises(ValueError, match=field):
        TranslationRecipe(training=training).training_arguments(tmp_path)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_the_recipes_of_the_repository_are_valid(path, tmp_path):
    recipe = load_recipe(path)
    recipe.training_arguments(tmp_path)


def test_the_main_comparison_differs_by_attention_alone(tmp_path):
    path = next(path for path in RECIPES if path.stem == "multi30k_en_de")
    own = {"attention", "normalization_loss_weight", "entropy_loss_weight", "architectures", "model_type"}
    configs = [load_recipe(path, [f"model.preset={preset}"]).model_config().to_dict() for preset in ATTENTION_PRESETS]
    for config in configs[1:]:
        different = {key for key in config.keys() | configs[0].keys() if config.get(key) != configs[0].get(key)}
        assert different <= own


def test_base_holds_where_the_recipe_says_nothing(tmp_path):
    (tmp_path / "base.yaml").write_text(
        "task: translation\nmodel: {preset: rela-g, d_model: 64}\ndecoding: {num_beams: 3}\n"
    )
    (tmp_path / "recipe.yaml").write_text("base: base.yaml\nmodel: {d_model: 32}\n")
    recipe = load_recipe(tmp_path / "recipe.yaml", ["decoding.num_beams=2"])
    assert recipe.model == {"preset": "rela-g", "d_model": 32}
    assert recipe.decoding.num_beams == 2
    assert load_recipe(tmp_path / "base.yaml").model["d_model"] == 64


@pytest.mark.parametrize(
    ("train", "validation", "share_rows"),
    [
        (None, "train[:9]", True),
        ("train[10:20]", "train[19:30]", True),
        ("train[:-5]", "train[-6:]", True),
        ("train+test", "train", True),
        ("train[:90%]", "train[90%:]", False),
        ("train[5:-5]", "train[-5:]", False),
        ("train[5:]", "test[:10]", False),
    ],
)
def test_parts_that_share_rows_are_refused(train, validation, share_rows):
    data = ImageRecipe.from_dict({"data": {"path": "x", "train": train, "validation": validation}}).data
    with pytest.raises(ValueError, match=r"data\.validation") if share_rows else nullcontext():
        check_apart(data.path, data.sources())


def test_files_that_share_rows_are_refused(tmp_path, monkeypatch):
    """Before they are read; a recipe that names them is one, as a published one says names and no folders."""
    monkeypatch.chdir(tmp_path)
    same = {"train": ["b.jsonl", str(tmp_path / "a.jsonl")], "validation": "./a.jsonl"}
    for owner in (TranslationRecipe, ImageRecipe):
        with pytest.raises(ValueError, match=r"data\.validation"):
            owner.from_dict({"data": same}).data.read(None)
    check_apart(None, {name: {"source": f"{name}.en", "target": f"{name}.de"} for name in ("train", "validation")})
