"""The command line, in this process and in processes of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from reluformers_cli import main

SCRIPTS = Path(__file__).parents[2] / "scripts"


def run_command(*arguments) -> None:
    """Run `reluformers …` here, which saves the imports."""
    main(list(map(str, arguments)))


def refusal_of(capsys, *arguments) -> str:
    """The line that refuses `reluformers …`, after code 2 and no traceback."""
    with pytest.raises(SystemExit) as caught:
        run_command(*arguments)
    assert caught.value.code == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert lines[-1].startswith("error: ")
    assert "Traceback" not in "".join(lines)
    return lines[-1]


def launch(script: str, processes: int, *arguments) -> str:
    """Output of a file of `scripts/` in processes of its own on the CPU."""
    launcher = [sys.executable]
    if processes > 1:
        launcher += ["-m", "torch.distributed.run", f"--nproc_per_node={processes}", "--master_addr=127.0.0.1"]
        launcher += ["--rdzv_endpoint=127.0.0.1:0", "--rdzv_backend=c10d"]
    environment = {**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    process = subprocess.run(
        [*launcher, str(SCRIPTS / script), *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


LANGUAGES = "--source_lang en --target_lang de"
# what opens a folder that holds a translation model: a checkpoint, in a place that `lay_out` has prepared
ON_A_FOLDER = {
    "evaluate": f"evaluate {{folder}} --data {{place}}/pairs.jsonl {LANGUAGES}",
    "analyse": f"analyse {{folder}} {{place}}/pairs.jsonl {LANGUAGES} --output {{place}}/analysis.json",
    "convert": "convert {folder} {place}/converted",
    "convert back": "convert {folder} {place}/converted --back",
    "average": "average {folder}/.. --last 1 --output {place}/averaged",
    "card": "card {folder} --repo_id a/b --output {place}/card",
    "check": "check {folder}",
    "push": "push {folder} a/b",
    "app": "app {folder}",
    "app --compare": "app ORG/NAME --compare {folder}",
    "train": "train {place}/recipe.yaml model.start={folder} --output_dir {place}/trained",
}


def lay_out(place: Path) -> None:
    """Write the sentence pairs and the recipe that the commands above read."""
    for name in ("pairs", "held_out"):
        (place / f"{name}.jsonl").write_text('{"translation": {"en": "a man", "de": "ein Mann"}}\n')
    data = f"{{train: {place}/pairs.jsonl, validation: {place}/held_out.jsonl, source_lang: en, target_lang: de}}"
    (place / "recipe.yaml").write_text(f"task: translation\ndata: {data}\ntraining: {{max_steps: 1}}\n")


def command_on(folder: Path, name: str, place: Path) -> list[str]:
    """Words of a command on a folder."""
    return ON_A_FOLDER[name].format(folder=folder, place=place).split()
