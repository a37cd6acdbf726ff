"""The papers' tables: every row is a valid recipe and a model; what a table's file may say."""

import fnmatch
from dataclasses import asdict

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM

from reluformers.configuration.configuration_attention import AttentionConfig
from reluformers_research.tables import RECIPES, Claim, Table, list_tables, row_key, run_name

TABLES = list_tables()


@pytest.mark.xdist_group("records")
@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_of_models_and_its_claims_are_of_their_rows(name, recipes):
    table = Table.load(name)
    assert f"#   reluformers table {name}" in (RECIPES / f"{name}.yaml").read_text(encoding="utf-8").split("\n\n")[0]
    homes = []
    for setting in table.settings:
        keys, rows = [], table.rows_of(setting)
        for row in rows:
            recipe = recipes[name, setting, row.name]
            recipe.training_arguments("runs/row")
            keys.append(row_key(recipe))
            assert table.baseline_of(row.name) in table.rows
            # one that names an activation says its whole formula, or keeps, say, the length factor of a preset
            stated = row.sections.get("model", {}).get("attention", {})
            if "activation" in stated and "preset" not in stated:
                attention = asdict(getattr(recipe, "attention", None) or recipe.model_config().attention)
                usual = AttentionConfig(activation=attention["activation"], scale_length=attention["scale_length"])
                kept = {field for field in attention if attention[field] != asdict(usual)[field]}
                assert kept <= set(stated), row.name
        assert len(set(keys)) == len(keys), "rows of one table that are one recipe"
        homes.append({row.name for row in rows})
    for claim in table.claims:
        assert any(all(fnmatch.filter(home, name) for name in (claim.first, claim.second)) for home in homes), (
            claim.text
        )


@pytest.mark.parametrize(
    ("text", "first", "relation", "second", "measure"),
    [
        ("a <= b", "b", ">=", "a", "score"),
        ("64/softmax+norm ~ 64/relu", "64/softmax+norm", "~", "64/relu", "score"),
        ("entropy: a > b", "a", ">", "b", "entropy"),
    ],
)
def test_claims(text, first, relation, second, measure):
    assert Claim.parse(text) == Claim(first, second, relation, measure, text)


SMALL = """
title: a table
margin: 0.5
baseline: one
settings:
  paper: {recipe: base.yaml}
rows:
  one: {paper: 1.0, model: {preset: softmax}}
  two: {model: {preset: reluformer}}
claims: [one < two]
"""
BASE = "task: translation\nmodel: {d_model: 16}\ndata: {train: a.jsonl, validation: b.jsonl, test: c.jsonl}\n"


def write_table(folder, text=SMALL):
    (folder / "base.yaml").write_text(BASE)
    (folder / "t.yaml").write_text(text)
    return str(folder / "t.yaml")


def test_a_run_is_named_by_what_decides_it(tmp_path):
    table = Table.load(write_table(tmp_path))
    one, two = table.rows_of("paper")

    def name(row, seed=1, overrides=()):
        return run_name(table.recipe("paper", row, seed, overrides))

    assert name(one) == name(one)
    assert name(one, 2) == name(one)[:-1] + "2"
    assert len({name(one), name(two), name(one, overrides=["training.max_steps=3"])}) == 3
    # the place of a file is none of it, its name is
    assert name(one, overrides=["data.train=/elsewhere/a.jsonl"]) == name(one)
    assert name(one, overrides=["data.train=/elsewhere/other.jsonl"]) != name(one)
    recipe = table.recipe("paper", one, 7, ["data.train=/elsewhere/other.jsonl"])
    assert row_key(recipe) == row_key(table.recipe("paper", one, 1))
    # nor is a default that is written out
    assert name(one, overrides=["data.translation_column=translation"]) == name(one)


def count_parameters(name, row, tokens):
    table = Table.load(name)
    config = table.recipe("paper", table.rows[row], 1).model_config(vocab_size=tokens)
    with torch.device("meta"):
        return AutoModelForSeq2SeqLM.from_config(config).num_parameters()


@pytest.mark.parametrize(
    ("row", "printed"), [("gl-en/qknorm", 31_051_880), ("sk-en/qknorm", 48_356_907), ("en-he/qknorm", 48_401_538)]
)
def test_parameters_of_qknorm_table_1(row, printed):
    """The released code adds two language embeddings; with 513 parameters a token the printed number fits one size."""
    table = Table.load("qknorm/t2")
    tokens = table.recipe("paper", table.rows[row], 1).tokenizer.vocab_size
    assert count_parameters("qknorm/t2", row, tokens) + 2 * 512 == printed


def test_parameters_of_rela_table_2():
    """72.31M and 72.34M: some 27,510 tokens; two vectors in each of 18 modules make 0.02M of the printed 0.03M."""
    softmax, gated = (count_parameters("rela/t1", row, 27_510) for row in ("softmax", "rela-g"))
    assert f"{softmax / 1e6:.2f}" == "72.31"
    assert gated - softmax == 2 * 18 * 512
