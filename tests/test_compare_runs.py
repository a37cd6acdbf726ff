"""The command line that puts runs side by side."""

import json
import runpy
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "compare_runs.py"


def finished_run(folder: Path, history: list[dict]) -> Path:
    folder.mkdir(parents=True)
    evaluation = {
        "bleu": {"score": 30.0, "signature": "BLEU|x"},
        "chrf": {"score": 50.0, "signature": "chrF|x"},
        "split": "test",
        "attention": {"overall": {"zeros": 0.5, "null_rate": 0.0, "entropy": None}},
    }
    files = {"evaluation": evaluation, "results": {"parameters": 1000}, "log_history": history}
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


@pytest.fixture
def compare(monkeypatch, capsys):
    def run(*arguments):
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), *map(str, arguments)])
        runpy.run_path(str(SCRIPT), run_name="__main__")
        return capsys.readouterr().out.splitlines()

    return run


def test_a_run_without_dev_bleu_has_a_dash(compare, tmp_path):
    scored = finished_run(tmp_path / "scored", [{"epoch": 1.0, "eval_bleu": 9.0}, {"epoch": 2.0, "eval_bleu": 8.0}])
    bare = finished_run(tmp_path / "bare", [{"epoch": 1.0, "loss": 3.0}])
    _, _, first, second, *signatures = compare(scored, bare)
    assert first.startswith("| scored | 30.00 | 50.00 | 9.00 (1) | 1,000 |")
    assert second.startswith("| bare | 30.00 | 50.00 | – | 1,000 |")
    assert signatures == ["BLEU|x (test)", "chrF|x (test)"]


def test_runs_of_one_name_keep_their_curves(compare, tmp_path):
    history = [{"epoch": 1.0, "loss": 3.0}, {"epoch": 2.0, "loss": 2.0}]
    folders = [finished_run(tmp_path / parent / "model", history) for parent in ("a", "b")]
    picture = tmp_path / "curves.svg"
    table = compare(*folders, "--curves", picture)
    for folder, row in zip(folders, table[2:4], strict=True):
        assert row.startswith(f"| {folder} |")
        assert str(folder) in picture.read_text()
