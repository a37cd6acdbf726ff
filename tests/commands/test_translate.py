"""`reluformers translate`: texts, files and columns, in their order, none cut, and going on after a stop."""

import io
import json
import os
import shutil
from contextlib import nullcontext

import pytest

from builders.commands import refusal_of, run_command
from builders.saved_models import TEXTS, save_translator
from reluformers.commands import translate as command
from reluformers.translation import lines
from reluformers.translation.decoding import load_translation_model, translate
from reluformers.translation.lines import cut_text, join_parts


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_translator(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def expected(folder):
    """What the model makes of texts, each alone: in a batch, longer ones allow it more tokens."""
    model, tokenizers = load_translation_model(folder)
    return lambda texts: [translate(model, tokenizers, [text], num_beams=1)[0] for text in texts]


def printed(capsys, *arguments) -> list[str]:
    run_command("translate", *arguments)
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("form", ["utf-16", "latin-1"])
def test_text_that_is_not_utf8_is_named(folder, capsys, tmp_path, monkeypatch, form):
    text = "Ein Mann läuft.\nb\n".encode(form)
    (tmp_path / "a.txt").write_bytes(text)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text)))
    for source in (tmp_path / "a.txt", "-"):
        assert "UTF-8" in refusal_of(capsys, "translate", "--model", folder, source)


def test_lines_keep_their_order_and_empty_ones_stay(folder, expected, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "BLOCK_LINES", 2)
    texts = [TEXTS[0], "", TEXTS[1], "  ", "Zwei Hüte.", TEXTS[0]]
    text = "\ufeff" + "\r\n".join(texts)  # UTF-8 as in files, whatever the system's encoding
    (tmp_path / "a.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    filled = iter(expected([text for text in texts if text.strip()]))
    wanted = [next(filled) if text.strip() else "" for text in texts]
    assert printed(capsys, "--model", folder, tmp_path / "a.txt", "--batch_size", 1) == wanted
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode()), encoding="latin-1"))
    assert printed(capsys, "--model", folder, "-", "--batch_size", 1) == wanted
    together = printed(capsys, "--model", folder, tmp_path / "a.txt")
    assert [bool(line) for line in together] == [bool(line) for line in wanted]
    assert all(line.startswith(alone) for line, alone in zip(together, wanted, strict=True))


def test_a_translation_is_one_line(folder, monkeypatch):
    """A vocabulary of bytes can spell a line break, by which a call that goes on would pass over a text."""
    monkeypatch.setattr(lines, "translate", lambda model, tokenizers, texts, **options: ["a\nb\r\nc"] * len(texts))
    model, tokenizers = load_translation_model(folder)
    assert list(lines.translate_lines(model, tokenizers, TEXTS[:2])) == ["a b c"] * 2


@pytest.mark.parametrize("ending", ["jsonl", "tsv"])
def test_a_column_of_a_table(ending, folder, expected, capsys, tmp_path):
    path, texts = tmp_path / f"a.{ending}", ["007", "Two dogs."]
    if ending == "jsonl":
        path.write_text("".join(json.dumps({"translation": {"en": text, "de": "x"}}) + "\n" for text in texts))
    else:
        path.write_text("de\ten\nx\t007\ny\tTwo dogs.\n")
    assert printed(capsys, "--model", folder, path, "--column", "en", "--batch_size", 1) == expected(texts)
    assert "'fr'" in refusal_of(capsys, "translate", "--model", folder, path, "--column", "fr")
    assert "--column" in refusal_of(capsys, "translate", "--model", folder, path)


def test_alignments_of_a_file_number_words_of_the_whole_line(folder, capsys, tmp_path, monkeypatch):
    sentences = ["Two dogs run over green grass." for _ in range(9)]
    (tmp_path / "a.txt").write_text(f"Two dogs.\n\n{'  '.join(sentences)}\nA man.\n")
    calls, translate = [], lines.translate
    monkeypatch.setattr(lines, "translate", lambda *given, **more: calls.append(1) or translate(*given, **more))
    arguments = ("--model", folder, tmp_path / "a.txt", "--alignments")
    answers = [json.loads(line) for line in printed(capsys, *arguments)]
    assert len(calls) == 1
    assert [answer["source"] for answer in answers] == ["Two dogs.", "", " ".join(sentences), "A man."]
    assert [answer["translation_text"] for answer in answers] == printed(capsys, *arguments[:-1])
    assert answers[1]["alignments"] == []
    for answer in answers:
        words = answer["source"].split()
        assert len(answer["alignments"]) <= len(answer["translation_text"].split())
        for link in answer["alignments"]:
            assert link["source"] is None or words[link["source_index"]] == link["source"]
    places = [link["source_index"] for link in answers[2]["alignments"] if link["source"] is not None]
    assert max(places) >= 48


def test_lines_of_a_text_stay_lines(folder, expected, capsys):
    first, last = expected(["A man.", "Two dogs."])
    assert printed(capsys, "--model", folder, "A man.\n\nTwo dogs.", "--batch_size", 1) == [first, "", last]
    assert printed(capsys, "--model", folder, "x" * 300) == expected(["x" * 300])  # longer than a file's name


def test_a_file_that_is_not_there_is_no_text(folder, expected, capsys, tmp_path):
    for text in ("news.en", "a.jsonl.gz", str(tmp_path)):
        assert text in refusal_of(capsys, "translate", "--model", folder, text)
    for text in ("Mr.Smith", "see news.en"):
        assert printed(capsys, "--model", folder, text) == expected([text])


def test_what_the_model_cannot_take_is_split_and_not_cut(folder, expected, capsys, tmp_path):
    sentences = ["Two dogs run over green grass." for _ in range(9)]
    model, (tokenizer, _) = load_translation_model(folder)
    assert len(tokenizer(" ".join(sentences))["input_ids"]) > model.config.max_position_embeddings
    (answer,) = printed(capsys, "--model", folder, " ".join(sentences), "--batch_size", 1)
    assert answer == " ".join(filter(None, expected(sentences)))


@pytest.mark.parametrize(
    ("text", "limit", "parts"),
    [
        ("你好。“再见！”他说.今天?对", 5, ["你好。", "“再见！”", "他说.", "今天?", "对"]),
        ("नमस्ते।कैसे हैं॥ठीक", 10, ["नमस्ते।", "कैसे हैं॥", "ठीक"]),
        ("مرحبا؟نعم۔ہاں", 7, ["مرحبا؟", "نعم۔", "ہاں"]),
        ("„Gut.“ Und 3.5 U.S.A.?", 18, ["„Gut.“", "Und 3.5 U.S.A.?"]),
        ("see it at a.b/?x=y.z", 17, ["see it at", "a.b/?x=y.z"]),
        ("我们今天去公园玩，明天再去学校", 9, ["我们今天去公园玩，", "明天再去学校"]),
        ("价格是3.5元左右", 6, ["价格是", "3.5元左右"]),
        ("abcdefg", 0, list("abcdefg")),
        ("สวัสดีครับวันนี้ อากาศดีมาก", 20, ["สวัสดีครับวันนี้", "อากาศดีมาก"]),
    ],
)
def test_every_script_is_cut_at_its_sentences_and_not_within_words(text, limit, parts):
    assert cut_text(text, len, limit) == parts
    assert join_parts(text, [(part, part) for part in parts]) == text


@pytest.mark.parametrize(
    ("text", "parts", "joined"),
    [
        ("你好。再见。", [("你好。", "Hello."), ("再见。", "Bye.")], "Hello. Bye."),
        ("Hello. Bye.", [("Hello.", "“你好。”"), ("Bye.", "“再见。”")], "“你好。”“再见。”"),
        ("Hello. Bye.", [("Hello.", "สวัสดี"), ("Bye.", "ลาก่อน")], "สวัสดี ลาก่อน"),
        ("A. B. C.", [("A.", "a."), ("B.", ""), ("C.", "c.")], "a. c."),
        ("abcd", [("ab", "ab"), ("cd", "cd")], "abcd"),
    ],
)
def test_translations_of_parts_are_joined_as_their_language_joins(text, parts, joined):
    assert join_parts(text, parts) == joined


@pytest.mark.parametrize("unit", ['."', ". ", ".a", "。)"])
def test_a_long_line_loses_nothing(unit):
    """Each part is searched once, not from the start of the text."""
    text = unit * 20_000
    parts = cut_text(text, len, 12_000)
    assert "".join(parts).replace(" ", "") == text.replace(" ", "")


def test_an_output_goes_on_where_it_was_cut_off(folder, expected, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "BLOCK_LINES", 2)
    texts, output = [TEXTS[0], "", "Two dogs.", TEXTS[1], "A man."], tmp_path / "out.txt"
    (tmp_path / "a.txt").write_text("\n".join(texts) + "\n")
    translated, calls = lines.translate, []

    def fail_later(model, tokenizers, block, **options):
        calls.append(block)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return translated(model, tokenizers, block, **options)

    monkeypatch.setattr(lines, "translate", fail_later)
    arguments = ("translate", "--model", folder, tmp_path / "a.txt", "--output", output, "--batch_size", 1)
    with pytest.raises(SystemExit):
        run_command(*arguments)
    (part,) = tmp_path.glob("out.txt.*.part")
    assert part.read_text().splitlines() == [*expected([TEXTS[0]]), ""]
    with part.open("a") as file:
        file.write("half a li")
    monkeypatch.setattr(lines, "translate", translated)
    run_command(*arguments, "--max_tokens", 10)  # changes no line
    first, second, third, fourth = expected([text for text in texts if text])
    assert output.read_text().splitlines() == [first, "", second, third, fourth]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "out.txt"]


def test_what_an_output_follows_from_has_lines_of_its_own(folder, capsys, tmp_path):
    """Another model, text or search begins anew; two calls with the same do not write together."""
    folder = shutil.copytree(folder, tmp_path / "model")
    (tmp_path / "a.txt").write_text("Two dogs.\nA man.\n")
    arguments = ("translate", "--model", folder, tmp_path / "a.txt", "--output", tmp_path / "out.txt")
    identities = []

    def no_file(path, identity):
        identities.append(identity)
        return nullcontext((io.StringIO(), 0))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "continued_file", no_file)
        patch.setattr(lines, "translate", lambda model, tokenizers, texts, **options: texts)
        run_command(*arguments)
        run_command(*arguments)
        run_command(*arguments, "--num_beams", 3)
        run_command(*arguments, "--alignments")
        os.utime(folder / "model.safetensors", (1, 1))
        run_command(*arguments)
        (tmp_path / "a.txt").write_text("Two cats.\nA man.\n")
        run_command(*arguments)
        os.utime(folder / "tokenizer.json", (1, 1))
        run_command(*arguments)
    first, *others = [json.dumps(identity) for identity in identities]
    assert [first == other for other in others] == [True, False, False, False, False, False]
    assert len({first, *others}) == 6
    with lines.continued_file(str(tmp_path / "out.txt"), identities[-1]) as (file, _):
        file.write("a line\n")
        file.flush()
        capsys.readouterr()
        assert "out.txt." in refusal_of(capsys, *arguments)
    assert (tmp_path / "out.txt").read_text() == "a line\n"
