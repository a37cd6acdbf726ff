"""Looks into every byte of a release for tokens, and into every text of it for places of this machine."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from huggingface_hub import get_token
from PIL import ExifTags, Image
from safetensors import SafetensorError, safe_open

from .secrets import Secret, find_secret, is_own_place

PICTURES = (".png", ".jpg", ".jpeg")
BINARY = (".safetensors", *PICTURES)
# pieces of a vocabulary may look like paths
_VOCABULARY = ("tokenizer.json", "vocab.json", "merges.txt", "added_tokens.json")
_LEAST_TOKEN = 16  # characters
# of anybody, as files that are no text show where they were made without a space before it
_HOME = re.compile(r"/(?:home|Users)/[\w.-]+/[\w.-]+|/root/[\w.-]+|\b[A-Z]:\\Users\\\w")
_EXIF_PARTS = (ExifTags.IFD.Exif, ExifTags.IFD.GPSInfo, ExifTags.IFD.IFD1)
_BLOCK, _OVERLAP = 1 << 22, 1 << 12  # bytes read at once, and those that two readings share
_LOCAL_TEXT = re.compile(
    r"""(?:^|(?<=[\s"'`(=\[]))(?:(?:file:/{1,2}|~)?/(?:[\w.+-]+/)+[\w.+-]+|[A-Z]:\\{1,2}\w)""", re.M
)


def check_files(staging: Path, names: Iterable[str], shown_as: Path) -> None:
    """Refuse files with a token or a path of this machine, whatever their kind.

    Texts are read line by line, of weights the header with its metadata, of pictures their text chunks and EXIF; every
    byte of all of them is searched for tokens.

    Args:
        staging: folder of the files.
        names: paths within it.
        shown_as: the folder that the user knows.

    Raises:
        ValueError: names the file, the place in it and the kind, and no token; or the file is not what its name says.
    """
    search = _Search(shown_as)
    for name in sorted(names):
        path, suffix = staging / name, Path(name).suffix.lower()
        if suffix in PICTURES:
            _check_parts(_picture_texts(path, shown_as / name), search, shown_as / name)
        elif suffix in BINARY:
            _check_parts(_header_texts(path, shown_as / name), search, shown_as / name)
        else:
            _check_lines(path, search, shown_as / name)
            continue
        _check_bytes(path, search, shown_as / name)


class _Search:
    """What may not be in a file: this user's token, well-known tokens, places of this machine."""

    def __init__(self, folder: Path):
        homes = [str(place) for place in (Path.home(), folder.resolve().parent) if len(place.parts) > 2]
        self.homes = re.compile("|".join(map(re.escape, homes))) if homes else None
        token = get_token() or ""
        # a shorter one is a mistake, and may be any word
        self.token = token.encode() if len(token) >= _LEAST_TOKEN else None

    def secret(self, data: bytes, *, is_text: bool = False) -> Secret | None:
        """What kind of token the data hold, and where."""
        if self.token and (position := data.find(self.token)) >= 0:
            return Secret("a token of the Hub", position)
        return find_secret(data, within_words=not is_text)

    def place(self, text: str, *, only_homes: bool = False) -> str | None:
        """The place of this machine that a text names."""
        if "/" not in text and ":\\" not in text:
            return None
        found = self.homes and self.homes.search(text)
        if found or only_homes:
            return found[0] if found else None
        return next((path for path in _LOCAL_TEXT.findall(text) if is_own_place(path)), None)

    def refuse(self, where: str, text: str) -> None:
        """Raise a ValueError if the text holds one of them."""
        self.refuse_secret(where, self.secret(text.encode(errors="replace")))
        self.refuse_place(where, self.place(text))

    def refuse_secret(self, where: str, secret: Secret | None) -> None:
        """Raise a ValueError if there is one."""
        if secret:
            raise ValueError(f"{where}: holds {secret.what}; take it out, and revoke it if others saw it")

    def refuse_place(self, where: str, place: str | None) -> None:
        """Raise a ValueError if there is one."""
        if place:
            raise ValueError(f"{where}: names a path of this machine, {place}; take it out")


def _check_lines(path: Path, search: _Search, shown_as: Path) -> None:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{shown_as}: is not UTF-8 text ({error}); write it again") from error
    data = text.encode()
    if secret := search.secret(data, is_text=True):
        number = 1 + data.count(b"\n", 0, secret.position)
        search.refuse_secret(f"{shown_as}, line {number}", secret)
    for number, line in enumerate(text.split("\n"), start=1):
        if place := search.place(line, only_homes=path.name in _VOCABULARY):
            search.refuse_place(f"{shown_as}, line {number}", place)


def _check_parts(parts: Iterator[tuple[str, Any]], search: _Search, shown_as: Path) -> None:
    for part, value in parts:
        if isinstance(value, bytes):  # EXIF has text in UTF-16 too, which without its zeros is like any other
            value = value.replace(b"\0", b"").decode("latin-1")
        search.refuse(f"{shown_as}, {part}", f"{value}")


def _check_bytes(path: Path, search: _Search, shown_as: Path) -> None:
    """Whatever the parser of the format leaves out: trailing bytes, chunks of other programs, the tensors."""
    with path.open("rb") as file:
        tail, start = b"", 0
        while block := file.read(_BLOCK):
            data = tail + block
            # tensors of gigabytes are searched for tokens alone
            home = path.suffix != ".safetensors" and _HOME.search(data.decode("latin-1"))
            secret = search.secret(data)
            if what := secret.what if secret else home and f"a path of this machine, {home[0]}":
                near = start - len(tail)
                raise ValueError(f"{shown_as}, behind byte {near:,}: holds {what}; write the file again without it")
            tail, start = data[-_OVERLAP:], start + len(block)


def _picture_texts(path: Path, shown_as: Path) -> Iterator[tuple[str, Any]]:
    """Text chunks, comments and EXIF of a picture."""
    try:
        with Image.open(path, formats=("PNG", "JPEG")) as image:
            image.load()  # chunks behind the pixels too
            exif = image.getexif()
            entries = [*exif.items(), *(item for ifd in _EXIF_PARTS for item in exif.get_ifd(ifd).items())]
            yield from ((f"its text {key!r}", value) for key, value in image.info.items())
            yield from ((f"its EXIF entry {ExifTags.TAGS.get(key, key)}", value) for key, value in entries)
    except Exception as error:  # on broken files, each format has errors of its own
        raise ValueError(f"{shown_as}: is no picture that can be opened; give a PNG or JPEG file") from error


def _header_texts(path: Path, shown_as: Path) -> Iterator[tuple[str, Any]]:
    """Metadata of weights, and the names of the tensors."""
    try:
        with safe_open(path, framework="pt") as weights:
            metadata, names = weights.metadata() or {}, list(weights.keys())
    except SafetensorError as error:
        raise ValueError(f"{shown_as}: are no weights that can be opened ({error}); save the model again") from error
    yield from ((f"its metadata {key!r}", f"{key}: {value}") for key, value in metadata.items())
    yield "the names of its tensors", "\n".join(names)
