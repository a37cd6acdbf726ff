"""Whole files or none, UTF-8 text, and the frame of the command lines."""

import errno
import gzip
import importlib
import os
import signal
from pathlib import Path

import pytest

from reluformers.errors import run_main
from reluformers.files import MARK, atomic_directory, atomic_write, check_output_files, iterate_lines, parse_yaml


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_output_files_are_checked_before_work(tmp_path):
    (tmp_path / "file").write_text("old")
    check_output_files(None, tmp_path / "file", tmp_path / "new" / "folder" / "file", None)
    assert names(tmp_path) == ["file"]
    os.mkfifo(tmp_path / "pipe")
    for paths in ([tmp_path], [tmp_path / "a", tmp_path / "b" / ".." / "a"], [tmp_path / "pipe"]):
        with pytest.raises(ValueError, match=str(tmp_path)):
            check_output_files(*paths)
    with pytest.raises(NotADirectoryError):
        check_output_files(tmp_path / "file" / "below")
    assert names(tmp_path) == ["file", "pipe"]


def test_what_is_read_is_not_written_over(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").write_text("{}\n")
    check_output_files("out.json", inputs=["rows.jsonl", "owner/name", None, "."])
    for path in ("rows.jsonl", tmp_path / "rows.jsonl", "./x/../rows.jsonl"):
        with pytest.raises(ValueError, match=r"rows.jsonl: is read by the same command, and would be lost"):
            check_output_files("out.json", path, inputs=["rows.jsonl"])
    with pytest.raises(ValueError, match=r"rows.jsonl: is read by the same command, and would be lost"):
        check_output_files("rows.jsonl", inputs=["."])


@pytest.mark.parametrize("interruption", [RuntimeError, KeyboardInterrupt])
def test_interrupted_write_leaves_the_old_file(tmp_path, interruption):
    target = tmp_path / "out.txt"
    target.write_text("old")

    def write():
        with atomic_write(target) as temporary:
            temporary.write_text("half")
            raise interruption

    with pytest.raises(interruption):
        write()
    assert target.read_text() == "old"
    assert names(tmp_path) == ["out.txt"]


def test_write_follows_a_symbolic_link(tmp_path):
    real, link = tmp_path / "real.txt", tmp_path / "link.txt"
    real.write_text("old")
    link.symlink_to(real)
    with atomic_write(link) as temporary:
        temporary.write_text("new")
    assert link.is_symlink()
    assert real.read_text() == "new"


def test_full_directory_is_refused_before_the_work(tmp_path):
    target = tmp_path / "model"
    target.mkdir()
    (target / "precious").write_text("1")
    entered = False
    with pytest.raises(ValueError, match="not empty"), atomic_directory(target):
        entered = True
    assert not entered
    assert names(tmp_path) == ["model"]


@pytest.mark.parametrize("precious", [["thesis.txt"], ["config.json"], ["page.json"], [MARK, ".git"]])
def test_a_directory_of_others_is_not_overwritten(tmp_path, precious):
    for name in precious:
        (tmp_path / name).write_text("1")
    with pytest.raises(ValueError, match="could lose your work"), atomic_directory(tmp_path, overwrite=True):
        pass
    assert names(tmp_path) == sorted(precious)


def test_overwritten_directory_holds_only_new_files(tmp_path):
    target = tmp_path / "model"
    target.mkdir()
    (target / MARK).write_text("1")
    with atomic_directory(target, overwrite=True) as temporary:
        (temporary / "new").write_text("2")
    assert names(target) == [MARK, "new"]
    assert names(tmp_path) == ["model"]


@pytest.mark.parametrize("interruption", [RuntimeError, KeyboardInterrupt])
def test_interrupted_directory_leaves_the_old_one(tmp_path, interruption):
    target = tmp_path / "model"
    target.mkdir()
    (target / MARK).write_text("1")

    def fill():
        with atomic_directory(target, overwrite=True) as temporary:
            (temporary / "new").write_text("2")
            raise interruption

    with pytest.raises(interruption):
        fill()
    assert names(target) == [MARK]
    assert names(tmp_path) == ["model"]


def test_lines_end_at_line_feeds_only(tmp_path):
    path = tmp_path / "x.de"
    path.write_bytes("\ufeffä\r\nb\u2028c\rd\x0be\n\nf".encode())
    assert list(iterate_lines(path)) == ["ä", "b\u2028c\rd\x0be", "", "f"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.txt", b"good\nb\xe4d\n", r"x\.txt, line 2, byte 2: not UTF-8"),
        ("x.gz", b"plain", "damaged gzip"),
        ("y.gz", gzip.compress(b"a line\n" * 99, mtime=0)[:20], "damaged gzip"),
        ("absent.txt", None, r"absent\.txt: no such file"),
    ],
)
def test_unreadable_text_is_named(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        list(iterate_lines(tmp_path / name))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ValueError("x.jsonl: no rows"), 2, "error: x.jsonl: no rows\n"),
        (ValueError("two\n  lines"), 2, "error: two lines\n"),
        (ValueError(), 2, "error: ValueError\n"),
        (PermissionError(errno.EACCES, "Permission denied", "x"), 2, "error: x: Permission denied\n"),
        (KeyboardInterrupt(), 130, "error: interrupted\n"),
        (ImportError("needs the package peft"), 2, "error: needs the package peft\n"),
        (
            ModuleNotFoundError("No module named 'no_such.part'", name="no_such.part"),
            2,
            "error: this needs the package no_such: run `pip install no_such`\n",
        ),
        # of a connection, while somebody reads the output
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), 2, "error: [Errno 32] Broken pipe\n"),
    ],
)
def test_errors_of_the_user_are_one_line(capsys, error, code, line):
    def main():
        raise error

    with pytest.raises(SystemExit) as caught:
        run_main(main)
    assert caught.value.code == code
    assert capsys.readouterr().err == line


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device", "model.safetensors"),
        # as safetensors reports it
        RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)"),
        # as PyTorch reports it
        RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 704 vs 598"),
        RuntimeError("PytorchStreamWriter failed writing file data/0: file write failed"),
    ],
)
def test_full_disk_is_said_plainly(capsys, error):
    def main():
        raise error

    with pytest.raises(SystemExit) as caught:
        run_main(main)
    assert caught.value.code == 2
    assert capsys.readouterr().err.startswith("error: no space left on the disk")


def test_sigterm_is_a_clean_stop(tmp_path, capsys):
    def main():
        with atomic_directory(tmp_path / "model"):
            signal.raise_signal(signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as caught:
        run_main(main)
    assert caught.value.code == 143
    assert capsys.readouterr().err == "error: terminated\n"
    assert names(tmp_path) == []
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize(
    ("module", "package", "extra"),
    [("datasets", "datasets", "train"), ("yaml", "pyyaml", "train"), ("gradio",) * 2 + ("app",)],
)
def test_the_extra_of_a_missing_package_is_named(capsys, monkeypatch, module, package, extra):
    def main():
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)

    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SystemExit) as caught:
        run_main(main)
    assert caught.value.code == 2
    assert capsys.readouterr().err == (
        f"error: this needs the package {package}: install reluformers with its extra {extra!r}, or "
        f"`pip install {package}`\n"
    )


def test_other_errors_propagate_and_success_is_silent(capsys):
    def broken():
        raise KeyError("a fault of ours")

    def misses():
        importlib.import_module("reluformers.no_such_module")

    with pytest.raises(KeyError, match="a fault of ours"):
        run_main(broken)

    def misses_a_part():
        importlib.import_module("pytest.no_such_part")

    for one in (misses, misses_a_part):
        with pytest.raises(ModuleNotFoundError, match="no_such"):
            run_main(one)
    run_main(lambda: None)
    assert capsys.readouterr().err == ""


def test_yaml_with_aliases_is_read():
    assert parse_yaml("a: &a [1, 2]\nb: *a\nc: ''") == {"a": [1, 2], "b": [1, 2], "c": ""}
