"""What a push makes by itself: the card, and what stays out of a release."""

import io
import json

import pytest
from huggingface_hub import ModelCard
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from builders.hub_folders import REPO, client, pushed
from reluformers.commands.push import ask
from reluformers.publish.push import push_to_hub

TRAINERS_CARD = """---
license: mit
base_model: acme/base
tags:
- generated_from_trainer
model-index:
- name: tuned
  results: []
---

# tuned

More information needed
"""


def test_held_out_rows_stay_out_of_a_release(folder, hub, unchecked):
    """They are in results.json, and in the stored answers to them."""
    row = {"source": "two dogs „play“", "reference": "zwei Hunde", "output": "zwei Hunde"}
    (folder / "results.json").write_text(json.dumps({"examples": [row], "steps": 3}))
    (folder / "check.json").write_text(json.dumps([{"text": row["source"]}], ensure_ascii=False))
    push_to_hub(folder, REPO, api=client(hub))
    assert json.loads(pushed(hub)["results.json"])["examples"] == [row]
    push_to_hub(folder, REPO, revision="v2", api=client(hub), held_out=False)
    assert json.loads(pushed(hub)["results.json"]) == {"steps": 3}
    assert row["source"].encode() not in pushed(hub).get("check.json", b"")
    assert json.loads((folder / "results.json").read_text())["examples"] == [row]


def test_a_tuned_model_is_pushed_with_its_task_and_base(folder, hub, unchecked):
    """As the stock trainer leaves it: no records of ours, and a README.md that says next to nothing."""
    for name in ("recipe.yaml", "results.json", "attention.png"):
        (folder / name).unlink()
    (folder / "README.md").write_text(TRAINERS_CARD)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder, trust_remote_code=True)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(folder).save_pretrained(folder)
    push_to_hub(folder, REPO, api=client(hub))
    card = pushed(hub)["README.md"].decode()
    data = ModelCard(card).data
    assert (data.license, data.pipeline_tag) == ("mit", "translation")
    assert (data.base_model, data.base_model_relation) == ("acme/base", "finetune")
    assert "generated_from_trainer" not in card


def test_who_will_see_it_is_said_before_anything_is_uploaded(folder, hub, unchecked):
    asked = []

    def refuse(line):
        asked.append(line)
        return False

    for options, word in (({}, "public"), ({"private": True}, "private")):
        with pytest.raises(ValueError, match="nothing was pushed"):
            push_to_hub(folder, REPO, api=client(hub), confirm=refuse, **options)
        assert f"will be {word}" in asked.pop()
        assert not hub.repos
    push_to_hub(folder, REPO, api=client(hub), private=True)
    push_to_hub(folder, REPO, api=client(hub), confirm=refuse)  # there is nothing to do
    assert not asked
    (folder / "README.md").write_text((folder / "README.md").read_text() + "\nMore.\n")
    with pytest.raises(ValueError, match="nothing was pushed"):
        push_to_hub(folder, REPO, api=client(hub), confirm=refuse)
    assert "is private" in asked.pop()


@pytest.mark.parametrize("is_terminal", [True, False])
@pytest.mark.parametrize("answer", ["y\n", "\n"])
def test_a_terminal_is_asked(monkeypatch, is_terminal, answer):
    for name, text in (("stdin", answer), ("stdout", "")):
        stream = io.StringIO(text)
        stream.isatty = lambda: is_terminal
        monkeypatch.setattr(f"sys.{name}", stream)
    assert ask("ORG/NAME: will be public") is (answer == "y\n" or not is_terminal)
    assert "ORG/NAME" in stream.getvalue()
