"""A folder is opened as strangers will, before it is pushed."""

import json
import shutil

import pytest
from safetensors.torch import load_file, save_file

from builders.commands import refusal_of, run_command
from reluformers.publish import folder_check as check
from reluformers.publish.clean_process import answer_in_clean_process
from reluformers.publish.folder_check import check_folder
from reluformers.publish.release import CHECK_FILE

pytestmark = pytest.mark.xdist_group("check")


@pytest.fixture(scope="module")
def stranger(saved, tmp_path_factory):
    """What code that spies and computes something else saw, the answer of its process, and why it was refused."""
    place, answers = tmp_path_factory.mktemp("stranger"), []
    (place / "token").write_text("hf_secret")
    folder = shutil.copytree(saved, place / "run")
    path = folder / "modeling_seq2seq.py"
    path.write_text(
        path.read_text().replace("math.sqrt(config.d_model)", "config.d_model")
        + f"""
import json, os, pathlib, huggingface_hub
places = [pathlib.Path("token").exists(), pathlib.Path("~/token").expanduser().exists()]
found = [dict(os.environ), places, huggingface_hub.get_token()]
pathlib.Path({str(place / "seen.json")!r}).write_text(json.dumps(found))
"""
    )

    def ask(*arguments):
        answers.append(answer_in_clean_process(*arguments))
        return answers[-1]

    with pytest.MonkeyPatch.context() as patch:
        for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "AWS_SECRET_ACCESS_KEY", "MY_OWN", "TORCH_home"):
            patch.setenv(name, "hf_secret")
        patch.setenv("HF_HOME", str(place))
        patch.setenv("HF_TOKEN_PATH", str(place / "token"))
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.chdir(place)
        patch.setattr(check, "answer_in_clean_process", ask)
        with pytest.raises(ValueError, match="computes other logits than reluformers"):
            check_folder(folder)
    return place, answers[0]


def test_code_gets_no_token_and_is_refused_if_it_computes_something_else(stranger):
    place, _ = stranger
    environment, places, token = json.loads((place / "seen.json").read_text())
    assert "hf_secret" not in environment.values()
    assert str(place) not in json.dumps(environment)
    assert environment["OMP_NUM_THREADS"] == "1"
    assert (places, token) == ([False, False], None)


def edit_answers(folder, change) -> None:
    content = json.loads((folder / CHECK_FILE).read_text())
    change(content["answers"])
    (folder / CHECK_FILE).write_text(json.dumps(content))


def test_answers_are_stored_and_come_out_again(folder, capsys, stranger, monkeypatch):
    monkeypatch.setattr(check, "answer_in_clean_process", lambda *arguments: stranger[1] | {"difference": 0.0})
    run_command("check", folder, "--write")
    answers = json.loads((folder / CHECK_FILE).read_text())["answers"]
    assert len(answers) == 4
    assert all(answer["input_ids"] and len(answer["tokens"]) > 1 for answer in answers)
    assert check_folder(folder).is_stored
    edit_answers(folder, lambda answers: answers[2]["tokens"].append(7))
    assert "tokens of input 3 " in refusal_of(capsys, "check", folder)
    run_command("check", folder, "--write")
    edit_answers(folder, lambda answers: answers[0]["logits"].update(max=answers[0]["logits"]["max"] * 1.01))
    assert "logits of input 1 " in refusal_of(capsys, "check", folder)


SETTINGS = {
    "config.json": {"auto_map": {"AutoModel": "evil/code--modeling_seq2seq.ReLUFormerModel"}},
    "modeling_seq2seq.py": None,
    "tokenizer_config.json": {"auto_map": {"AutoTokenizer": [None, "evil.Evil"]}},
    "preprocessor_config.json": {"auto_map": {"AutoImageProcessor": "evil.Evil"}},
    "processor_config.json": {"image_processor": {"auto_map": {"AutoImageProcessor": "evil.Evil"}}},
    "adapter_config.json": {"base_model_name_or_path": "elsewhere"},
    "custom_generate/generate.py": {},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_whatever_brings_code_is_named_and_not_run(folder, capsys, monkeypatch, name):
    monkeypatch.setattr(check, "answer_in_clean_process", lambda *arguments: pytest.fail("its code was run"))
    (folder / name).parent.mkdir(exist_ok=True)
    before = (folder / name).read_text() if (folder / name).is_file() else "{}"
    text = f"{before}\n# tampered\n" if SETTINGS[name] is None else json.dumps(json.loads(before) | SETTINGS[name])
    (folder / name).write_text(text)
    line = refusal_of(capsys, "check", folder)
    assert name in line
    assert "attention.py" not in line


def test_weights_that_are_not_finite_are_no_fault_of_the_code(folder, capsys):
    weights = load_file(folder / "model.safetensors")
    name = min(weights)
    weights[name].view(-1)[0] = float("nan")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert name in refusal_of(capsys, "check", folder)
