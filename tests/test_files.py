"""Whole files or none, UTF-8 text, and the frame of the command lines."""

import gzip
import os
from pathlib import Path

import pytest

from reluformers.files import (
    MARK,
    atomic_directory,
    atomic_write,
    check_output_files,
    iterate_lines,
    read_json,
    write_json,
)

TWO_LINES = "Two dogs.\nThrée cats.\n"


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_output_files_are_checked_before_work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").write_text("{}\n")
    os.mkfifo("pipe")
    check_output_files(None, "out.json", "new/folder/file", inputs=["rows.jsonl", "owner/name", None, "."])
    for paths in (["."], ["a", "b/../a"], ["pipe"], ["rows.jsonl"], ["out.json", "./x/../rows.jsonl"]):
        with pytest.raises(ValueError, match=str(tmp_path)):
            check_output_files(*paths, inputs=["rows.jsonl"])
    with pytest.raises(ValueError, match=r"rows\.jsonl"):
        check_output_files("rows.jsonl", inputs=["."])
    with pytest.raises(NotADirectoryError):
        check_output_files("rows.jsonl/below")
    assert names(tmp_path) == ["pipe", "rows.jsonl"]


@pytest.mark.parametrize("interruption", [RuntimeError, KeyboardInterrupt])
def test_what_is_interrupted_leaves_what_was_there(tmp_path, interruption):
    file, folder = tmp_path / "out.txt", tmp_path / "model"
    file.write_text("old")
    folder.mkdir()
    (folder / MARK).write_text("1")

    def interrupt(writing):
        with writing as temporary:
            (temporary / "new" if temporary.is_dir() else temporary).write_text("half")
            raise interruption

    for writing in (atomic_write(file), atomic_directory(folder, overwrite=True)):
        with pytest.raises(interruption):
            interrupt(writing)
    assert file.read_text() == "old"
    assert names(folder) == [MARK]
    assert names(tmp_path) == ["model", "out.txt"]


def test_write_follows_a_symbolic_link(tmp_path):
    real, link = tmp_path / "real.txt", tmp_path / "link.txt"
    real.write_text("old")
    link.symlink_to(real)
    with atomic_write(link) as temporary:
        temporary.write_text("new")
    assert link.is_symlink()
    assert real.read_text() == "new"


@pytest.mark.parametrize(("precious", "overwrite"), [([MARK], False), (["config.json"], True), ([MARK, ".git"], True)])
def test_a_directory_of_others_is_refused_before_the_work(tmp_path, precious, overwrite):
    for name in precious:
        (tmp_path / name).write_text("1")
    with pytest.raises(ValueError, match="not empty"), atomic_directory(tmp_path, overwrite=overwrite):
        pytest.fail("the work has begun")
    assert names(tmp_path) == sorted(precious)


def test_overwritten_directory_holds_only_new_files(tmp_path):
    target = tmp_path / "model"
    target.mkdir()
    (target / MARK).write_text("1")
    with atomic_directory(target, overwrite=True) as temporary:
        (temporary / "new").write_text("2")
    assert names(target) == [MARK, "new"]
    assert names(tmp_path) == ["model"]


def test_lines_end_at_line_feeds_only(tmp_path):
    path = tmp_path / "x.de"
    path.write_bytes("\ufeffä\r\nb\u2028c\rd\x0be\n\nf".encode())
    assert list(iterate_lines(path)) == ["ä", "b\u2028c\rd\x0be", "", "f"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.txt", b"good\nb\xe4d\n", "UTF-8.*0xe4"),
        *((f"{form}.txt", TWO_LINES.encode(form), "UTF-8") for form in ("utf-16", "utf-16-le", "utf-32-le")),
        ("y.gz", gzip.compress(b"a line\n" * 99, mtime=0)[:20], "end-of-stream"),
    ],
)
def test_unreadable_text_is_refused(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=f"{name}.*{message}"):
        list(iterate_lines(tmp_path / name))


def test_a_name_that_is_not_utf8_loses_no_record(tmp_path):
    content = {"path": os.fsdecode(b"data\xff.jsonl"), "text": "ä\u2028"}
    write_json(tmp_path / "record.json", content)
    assert read_json(tmp_path / "record.json") == content


def test_missing_json_is_named_once(tmp_path):
    path = tmp_path / "missing.json"
    with pytest.raises(ValueError, match="cannot be read") as refused:
        read_json(path)
    assert str(refused.value).count(str(path)) == 1
