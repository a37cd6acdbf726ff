"""Files that are whole or absent, and text that is UTF-8."""

import gzip
import json
import math
import os
import re
import shutil
import tempfile
import uuid
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .errors import describe_error


@contextmanager
def atomic_write(path: str | os.PathLike) -> Iterator[Path]:
    """Write a file so that others see the old one or the whole new one, never a part.

    Args:
        path: The file to write; missing parent folders are made, a symbolic link is followed.

    Yields:
        A path beside it with the same ending, which the caller writes to; it takes the place of `path` at the end and
        is removed if the block is left by an exception.
    """
    target = Path(os.path.realpath(path))
    temporary = _beside(target)
    try:
        yield temporary
        sync(temporary)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


# A byte order mark is no part of the first sentence.
LINES = {"encoding": "utf-8-sig", "errors": "strict", "newline": "\n"}
_SURROGATE = re.compile("[\ud800-\udfff]")
MARK = ".reluformers"  # A command may replace a folder with this file, as one wrote it.


@contextmanager
def atomic_directory(path: str | os.PathLike, *sources: str | os.PathLike, overwrite: bool = False) -> Iterator[Path]:
    """Fill a folder so that others see the old one or the whole new one, never a part.

    Args:
        path: The folder to make; missing parent folders are made, a symbolic link is followed.
        sources: Folders that are read for it, and must not be lost; what is no folder, such as a Hub id, counts for
            nothing.
        overwrite: Replace a folder that already holds something, if this function has written it and neither a source
            nor a checkpoint lies in it.

    Yields:
        An empty folder beside it, which the caller fills; it takes the place of `path` at the end and is removed if
        the block is left by an exception.

    Raises:
        ValueError: If it is not empty, and may not be replaced.
        NotADirectoryError: If it is a file.
    """
    target = Path(os.path.realpath(path))
    names = os.listdir(target) if target.exists() else []
    # A source may be a link, so both the link and its target must stay.
    read = [form for one in map(Path, sources) for form in (one.parent.resolve() / one.name, one.resolve())]
    kept = [*target.rglob("trainer_state.json"), *(one for one in read if one.exists() and one.is_relative_to(target))]
    if names and (not overwrite or kept or ".git" in names or MARK not in names):
        raise ValueError(f"{path}: is not empty; choose another folder, or, if a command wrote it, give --overwrite")
    temporary = _beside(target)
    temporary.mkdir()
    try:
        yield temporary
        (temporary / MARK).touch()
        replace_directory(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_text(path: str | os.PathLike, text: str) -> None:
    r"""Write a file of UTF-8, whole or not at all.

    A name of a file that is not UTF-8 may stand in the text: its bytes are written as `\udcff`, as JSON has them.
    """
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace", newline="\n")


def write_json(path: str | os.PathLike, content: Any) -> None:
    """Write a JSON file, whole or not at all, with a content as `as_json` gives it."""
    write_text(path, json.dumps(as_json(content), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def as_json(content: Any) -> Any:
    """What JSON can hold of a content: numbers of numpy as Python's, NaN and infinities as None."""
    if isinstance(content, Mapping):
        return {name: as_json(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [as_json(value) for value in content]
    value = content.item() if hasattr(content, "item") else content
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def read_json(path: str | os.PathLike) -> Any:
    """Content of a JSON file; a ValueError names one that is missing or no JSON in UTF-8."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:  # Endless brackets are a RecursionError.
        reason = getattr(error, "strerror", None) or describe_error(error)
        raise ValueError(f"{path}: cannot be read ({reason})") from error


def check_output_files(*paths: str | os.PathLike | None, inputs: Iterable[Any] = ()) -> None:
    """Refuse files whose writing would lose others, or could not be done, before the work whose results they hold.

    Args:
        paths: The files; None for one that is not asked for.
        inputs: Files and folders that the same command reads; what is no path, such as a Hub id, is passed over.

    Raises:
        ValueError: If one is no ordinary file, an input or a file of one, or two are the same.
        OSError: If its folder cannot be written to.
    """
    wanted = [Path(path).resolve() for path in paths if path]
    read = {Path(path).resolve() for path in inputs if isinstance(path, str | os.PathLike)}
    for number, path in enumerate(wanted):
        is_read = path.is_file() and not read.isdisjoint([path, *path.parents])
        if is_read or path in wanted[:number] or (path.exists() and not path.is_file()):
            raise ValueError(f"{path}: is used twice by the same command, or is no ordinary file; choose another path")
        tempfile.TemporaryFile(dir=next(parent for parent in path.parents if parent.exists())).close()


def iterate_lines(path: str | os.PathLike, *, keep_ends: bool = False) -> Iterator[str]:
    r"""Read a UTF-8 text file line by line, packed with gzip if its name ends in `.gz`.

    Lines end at `\n` only, as other tools count them: a stray carriage return or Unicode line separator inside a
    sentence does not shift the lines of a parallel file. Without `keep_ends` they come without `\n` or `\r\n`.

    Raises:
        ValueError: it is not UTF-8, or a damaged gzip file; names it.
        OSError: it cannot be opened.
    """
    opener = gzip.open if str(path).endswith(".gz") else open
    with opener(path, "rt", **LINES) as file:
        yield from check_lines(file, str(path), keep_ends=keep_ends)


def check_lines(file: Iterable[str], name: str, *, keep_ends: bool = False) -> Iterator[str]:
    """Lines of an open text file; see `iterate_lines`. UTF-16 without a mark decodes, but is refused."""
    try:
        for number, line in enumerate(file, start=1):
            # These are the high bytes of UTF-16 in Latin, Greek, Cyrillic, Hebrew and Arabic.
            if number == 1 and not set(line).isdisjoint("\0\1\2\3\4\5\6"):
                raise ValueError(f"{name}: looks like UTF-16 without a mark; convert the file to UTF-8")
            yield line if keep_ends else line.removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise ValueError(f"{name}: is not text in UTF-8 ({error}); convert the file to UTF-8") from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{name}: is a damaged gzip file ({error})") from error


def check_sentence(value: Any, name: str, row_name: str) -> str:
    """Refuse a value that is no text or cannot be written again.

    Args:
        value: What is checked.
        name: Of its key or column.
        row_name: Of its row.

    Raises:
        ValueError: It would have to be turned into text, or holds half of a surrogate pair.
    """
    if not isinstance(value, str) or _SURROGATE.search(value):
        raise ValueError(f"{row_name}: {name!r} holds {value!r:.60}, not a sentence; correct or remove the row")
    return value


def sync(path: str | os.PathLike) -> None:
    """Wait until a file, or the list of names in a folder, is on the disk and outlasts a loss of power."""
    if os.name == "nt" and os.path.isdir(path):  # Windows opens no folder.
        return
    # Windows syncs only files opened for writing.
    descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_directory(new: Path, target: Path) -> None:
    """Let a folder take the place of another, which may be missing, on the same disk; what is behind a link stays."""
    if not os.path.lexists(target):
        new.rename(target)
        return
    old = _beside(target)
    target.rename(old)
    try:
        new.rename(target)
    except BaseException:
        old.rename(target)
        raise
    if old.is_symlink():
        old.unlink()
    else:
        shutil.rmtree(old)


def _beside(target: Path) -> Path:
    # The ending stays, because many writers choose the format by it.
    target.parent.mkdir(parents=True, exist_ok=True)
    return target.with_name(f".tmp-{uuid.uuid4().hex[:8]}-{target.name}")


def stamp(path: Path) -> tuple[int, ...] | None:
    """What changes with the content of a file; None where there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
