"""What a push makes by itself: the card, and what stays out of a release."""

import io
import json

import pytest

from builders.hub_folders import REPO, client, pushed
from reluformers.commands.push import ask
from reluformers.publish.push import push_to_hub


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


@pytest.mark.parametrize("is_terminal", [True, False])
@pytest.mark.parametrize("answer", ["y\n", "\n"])
def test_a_terminal_is_asked(monkeypatch, is_terminal, answer):
    for name, text in (("stdin", answer), ("stdout", "")):
        stream = io.StringIO(text)
        stream.isatty = lambda: is_terminal
        monkeypatch.setattr(f"sys.{name}", stream)
    assert ask("ORG/NAME: will be public") is (answer == "y\n" or not is_terminal)
    assert "ORG/NAME" in stream.getvalue()
