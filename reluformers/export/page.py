"""Writes a page that computes in the browser of whoever opens it: no server, no upload."""

import base64
import hashlib
import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from reluformers.files import atomic_directory, read_json, write_json
from reluformers.onnx import FOLDER, SUFFIXES
from reluformers.saved_models import EXPORT_RECORD

from .exporters import EXPORTERS
from .onnx_folder import export_onnx, write_examples

SITE = Path(__file__).with_name("site")
CDN = "https://cdn.jsdelivr.net"
_SETTINGS = ("preprocessor_config.json", "generation_config.json")
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json")
# Beside graphs and images the page reads these files; no others of the folder become public.
_READ = ("config.json", *_SETTINGS, *_TOKENIZER, *(f"target_tokenizer/{name}" for name in _TOKENIZER))
# Of generation_config.json, the page follows these settings, or they change no token of its search.
_SEARCH = (
    *("bos_token_id", "decoder_start_token_id", "eos_token_id", "pad_token_id", "num_beams", "length_penalty"),
    *("early_stopping", "max_length", "max_new_tokens", "renormalize_logits", "use_cache", "transformers_version"),
    "_from_model_config",
)
_PLAIN_NAME = re.compile(r"\w[\w .,()+=@-]*")


@dataclass(frozen=True)
class Pinned:
    """A file of an npm package, by its version and the hash of its content."""

    package: str
    version: str
    path: str
    integrity: str
    size: int

    @property
    def url(self) -> str:
        """Where a content delivery network has it."""
        return f"{CDN}/npm/{self.package}@{self.version}/{self.path}"

    @property
    def name(self) -> str:
        """Its name alone."""
        return self.path.rpartition("/")[2]


RUNTIME = {
    "ort": Pinned(
        "onnxruntime-web",
        "1.30.0",
        "dist/ort.wasm.bundle.min.mjs",
        "sha384-PLWz+nHEVHpjwBsO0YVdvQj6n5814Iv8E3b8FG0Rp/uIAtjFMCKOpP66iPzedrIG",
        73_054,
    ),
    "wasm": Pinned(
        "onnxruntime-web",
        "1.30.0",
        "dist/ort-wasm-simd-threaded.wasm",
        "sha384-vjBJ1z7qrhkTyYsNqKeF6c7N+nOJSU94czEo+tvZcu8G75JparGq9kB+kTnEUNVM",
        14_239_897,
    ),
    "tokenizers": Pinned(
        "@huggingface/tokenizers",
        "0.2.0",
        "dist/tokenizers.min.mjs",
        "sha384-Tl2lMbeE3RCGFLOUGQ7LhvaagysxiOw/9dulz2sD6jxNa1MckRJQBbYdVHhOoqEs",
        36_601,
    ),
}


def export_page(
    models: Sequence[str | Path],
    folder: str | Path,
    *,
    precision: str = "int8",
    bundle: str | Path | bool = False,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Write a page that shows some models.

    Args:
        models: folders or Hub ids; folders of `export_onnx` with attentions are taken as they are.
        folder: to write; any server of files can show it, and a Space with `sdk: static`.
        precision: of the graphs.
        bundle: whether the runtime lies in the folder too, where otherwise the browser fetches it from a content
            delivery network; the path of a `node_modules` to take it from, or True for the npm registry.
        overwrite: replace the folder if it exists.

    Returns:
        What page.json holds: the runtime, the models and the bytes that the browser loads.

    Raises:
        ValueError, OSError: a model cannot be exported or shown, two have one name, or a file of the runtime is not
            the pinned one.
    """
    with atomic_directory(folder, *models, overwrite=overwrite) as unfinished:
        for path in SITE.iterdir():
            shutil.copyfile(path, unfinished / path.name)
        entries = [_add_model(model, unfinished, precision) for model in models]
        if bundle:
            _bundle(None if bundle is True else Path(bundle), unfinished / "runtime")
        runtime = {
            key: {"url": f"runtime/{pinned.name}" if bundle else pinned.url, "integrity": pinned.integrity}
            for key, pinned in RUNTIME.items()
        }
        sizes = [pinned.size for pinned in RUNTIME.values()]
        sizes += [(unfinished / entry["path"] / name).stat().st_size for entry in entries for name in entry["graphs"]]
        page = {"runtime": runtime, "models": entries, "bytes": sum(sizes)}
        write_json(unfinished / "page.json", page)
        title = f"{entries[0]['title']} in your browser" if len(entries) == 1 else "reluformers in your browser"
        _fill(unfinished / "index.html", title=escape(title), origin="" if bundle else CDN)
        names = ", ".join(entry["title"] for entry in entries)
        _fill(unfinished / "README.md", title=json.dumps(title), names=names)
        _write_worker(unfinished, [] if bundle else list(runtime.values()))
    return page


def _fill(path: Path, **values: str) -> None:
    text = path.read_text(encoding="utf-8")
    for name, value in values.items():
        text = text.replace(f"{{{{ {name} }}}}", value)
    path.write_text(text, encoding="utf-8")


def _add_model(model: str | Path, page: Path, precision: str) -> dict[str, Any]:
    """Copy what a page reads of a model, in one precision, into the folder of the page, and say what it shows."""
    exported = Path(model)
    with tempfile.TemporaryDirectory() as temporary:
        if not (exported / EXPORT_RECORD).is_file():
            exported = Path(temporary, "onnx")
            export_onnx(model, exported, precisions=[precision], attentions=True)
        record = read_json(exported / EXPORT_RECORD)  # Anybody may have written it.
        exporter = EXPORTERS[record["task"]]
        name = record["model"]
        about = record["about"]
        examples = about["examples"] if exporter.has_image_examples else []
        if not record["attentions"] or not all(map(_PLAIN_NAME.fullmatch, (name, *examples))):
            raise ValueError(f"{model}: has no attentions, or files of other names than letters: {name}, {examples}")
        graphs = [f"{FOLDER}/{graph}{SUFFIXES[precision]}.onnx" for graph in exporter.runner.graph_names]
        _check_shown(exported)
        target = page / "models" / name
        target.mkdir(parents=True)
        read = [file for file in _READ if (exported / file).exists()]
        _check_no_links(exported, [*read, *graphs, *examples])
        for file in (*read, *graphs):
            (target / file).parent.mkdir(exist_ok=True)
            shutil.copyfile(exported / file, target / file)
        examples = write_examples([exported / file for file in examples], target)
    return {
        "task": record["task"],
        "title": name,
        "path": f"models/{name}",
        "graphs": graphs,
        "hasTarget": (target / "target_tokenizer").is_dir(),
        "about": about["training"] or "Its card does not say what it was trained on.",
        "languages": about["languages"],
        "examples": examples if exporter.has_image_examples else about["examples"],
    }


def _check_no_links(folder: Path, files: Iterable[str]) -> None:
    """Refuse links: a page shows only what lies in the folder itself."""
    for file in files:
        if (folder / file).resolve() != folder.resolve() / file:
            raise ValueError(f"{folder / file}: is a link, and a page shows only what lies in the folder itself")


def _check_shown(exported: Path) -> None:
    """Refuse a model that the page would compute otherwise than PyTorch does."""
    settings = {name: read_json(exported / name) for name in _SETTINGS if (exported / name).is_file()}
    images, search = (settings.get(name, {}) for name in _SETTINGS)
    otherwise = [name for name, value in search.items() if value and name not in _SEARCH]
    if isinstance(search.get("eos_token_id"), list):
        otherwise.append("eos_token_id")
    if images.get("do_center_crop") or "shortest_edge" in (images.get("size") or {}):
        otherwise.append("cropping")
    if images.get("resample", 2) not in (2, 3):
        otherwise.append("resample")
    for folder in (exported, exported / "target_tokenizer"):
        if (folder / "tokenizer_config.json").is_file() and not (folder / "tokenizer.json").is_file():
            otherwise.append("a slow tokenizer")
    if otherwise:
        raise ValueError(f"{exported}: the page does not compute as PyTorch does by {', '.join(otherwise)}")


def _bundle(packages: Path | None, folder: Path) -> None:
    """Copy the files of the runtime, from an installed `node_modules` or from the npm registry."""
    folder.mkdir()
    with tempfile.TemporaryDirectory() as temporary:
        if packages is None:
            packages = Path(temporary, "node_modules")
            wanted = sorted({f"{pinned.package}@{pinned.version}" for pinned in RUNTIME.values()})
            command = ["npm", "install", "--silent", "--ignore-scripts", "--no-save", "--prefix", temporary, *wanted]
            subprocess.run(command, check=False)  # The program says what is wrong.
        for pinned in RUNTIME.values():
            path = packages / pinned.package / pinned.path
            if integrity_of(path.read_bytes()) != pinned.integrity:
                raise ValueError(f"{path}: is not that of {pinned.package} {pinned.version}; install this version")
            shutil.copyfile(path, folder / pinned.name)


def integrity_of(content: bytes) -> str:
    """Hash of a file as browsers compare it."""
    return f"sha384-{base64.b64encode(hashlib.sha384(content).digest()).decode()}"


def _write_worker(page: Path, others: list[dict[str, str]]) -> None:
    """Name in the service worker all files of the page, and the release by their content."""
    names = sorted(path.relative_to(page).as_posix() for path in page.rglob("*") if path.is_file())
    names = [name for name in names if name not in ("README.md", "worker.js")]
    contents = hashlib.sha256()
    for name in names:
        contents.update(f"{name}\0{integrity_of((page / name).read_bytes())}\n".encode())
    files = [["./", None], *([name, None] for name in names), *([one["url"], one["integrity"]] for one in others)]
    _fill(page / "worker.js", release=f"reluformers-{contents.hexdigest()[:16]}", files=json.dumps(files))
