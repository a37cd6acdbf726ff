"""No command runs code of a folder, or asks whether it may, unless it is told to."""

import json

import pytest

from builders.commands import ON_A_FOLDER, lay_out, run_command
from builders.pictures import picture
from builders.saved_models import save_classifier, save_translator

EVIL = {
    "AutoConfig": "evil.Evil",
    "AutoModelForSeq2SeqLM": "evil.Evil",
    "AutoModelForImageClassification": "evil.Evil",
    "AutoTokenizer": ["evil.Evil", "evil.Evil"],
    "AutoImageProcessor": "evil.Evil",
}
STRANGE = {"auto_map": EVIL, "tokenizer_class": "Evil", "image_processor_type": "Evil"}
# folder → who saves it, the file that names code, and what in it
FOLDERS = {
    "config": (save_translator, "config.json", {"auto_map": EVIL, "model_type": "evil"}),
    "tokenizer": (save_translator, "tokenizer_config.json", STRANGE),
    "processor": (save_classifier, "preprocessor_config.json", STRANGE),
}
# all but those that run code of a folder, in a process of their own
COMMANDS = [name for name in ON_A_FOLDER if name not in ("check", "app", "app --compare")]
OTHERS = {
    "evaluate images": "evaluate {folder} --data {place}/images",
    "compare": "compare {folder}",
    "train tokenizer": "train {place}/recipe.yaml tokenizer.path={folder} --output_dir {place}/run",
}


@pytest.mark.parametrize("command", [*COMMANDS, *OTHERS])
@pytest.mark.parametrize("name", FOLDERS)
def test_no_command_runs_code_or_asks_for_it(tmp_path, monkeypatch, name, command):
    asked, (save, file, content) = [], FOLDERS[name]
    monkeypatch.setattr("builtins.input", lambda *_: asked.append("y") or "y")
    monkeypatch.setitem(ON_A_FOLDER, "card", f"{ON_A_FOLDER['card']} --example {{place}}/images/cat/1.png")
    folder = save(tmp_path / "run" / "checkpoint-5")
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    (folder / file).write_text(json.dumps({**json.loads((folder / file).read_text()), **content}))
    lay_out(tmp_path)
    (tmp_path / "images" / "cat").mkdir(parents=True)
    picture(8, 12).save(tmp_path / "images" / "cat" / "1.png")
    code = 0
    try:
        run_command(*(ON_A_FOLDER | OTHERS)[command].format(folder=folder, place=tmp_path).split())
    except SystemExit as ended:
        code = ended.code
    assert not asked
    assert not (tmp_path / "ran").exists()
    assert code in (0, 2)
