"""The command line as a whole: what --help says, and errors of one line."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from builders.commands import refusal_of, run_command
from builders.saved_models import save_translator
from reluformers.app.app import read_arguments
from reluformers.commands import build_parser, parse


@pytest.mark.parametrize("words", [["a", "b"], ["--compare", "b", "a"]])
def test_a_second_model_of_the_app_is_the_one_to_compare(words):
    assert read_arguments(parse(build_parser("app")[0], [*words, "--port", "1"])) == {
        "model": "a", "compare": "b", "revision": None, "example": None, "port": 1,
    }  # fmt: skip


@pytest.mark.parametrize("setting", ["num_workers=1", "penalty=x", "min_new_tokens=a", "word"])
def test_settings_are_fields_of_the_task(capsys, tmp_path, setting):
    folder = save_translator(tmp_path / "model")
    languages = ["--source_lang", "en", "--target_lang", "de"]
    assert setting.partition("=")[0] in refusal_of(capsys, "evaluate", folder, "--data", "x", *languages, setting)
    assert "batch_size" in refusal_of(capsys, "evaluate", folder, "--data", "x", *languages, "--batch_size", 2)


ROWS = [{"source": "a man", "target": "ein Mann"}] * 3
NAMES = ["-a[12] #1 *", "a[1:2]::$HOME"]


def write_rows(path):
    if path.suffix == ".parquet":
        with path.open("wb") as file:
            pq.write_table(pa.Table.from_pylist(ROWS), file)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    else:
        path.write_text("".join("\t".join(row) + "\n" for row in [ROWS[0], *(row.values() for row in ROWS)]))


@pytest.mark.parametrize("name", NAMES)
def test_names_are_read_as_what_they_are(tmp_path, monkeypatch, name):
    save_translator(tmp_path / f"{name} model")
    monkeypatch.chdir(tmp_path)
    is_taken = not {"$", ":"} & set(name)  # by fsspec, which opens parquet files for `datasets`
    for ending in ("jsonl", "tsv", *(["parquet"] if is_taken else [])):
        data = f"{name}.{ending}"
        write_rows(tmp_path / data)
        languages = ["--source_lang=source", "--target_lang=target"]
        run_command("evaluate", f"--data={data}", f"--output={name}.json", *languages, "--", f"{name} model")
        assert json.loads((tmp_path / f"{name}.json").read_text())["data"]["source"] == data


def test_a_name_does_not_command_the_terminal(capsys):
    assert r"\x1b[31m" in refusal_of(capsys, "evaluate", "./\x1b[31m", "--data", "x")
