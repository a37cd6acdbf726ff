"""Files of a saved model as carelessness or malice may leave them."""

import copy
import json
import math
import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

JUNK = [
    *(None, True, False, 0, -1, 3, 10**9, 10**400, -(10**9), 0.5, 1e300, math.nan, math.inf),
    *("", "x", "1", "../x", "/etc/passwd", "\ud800", "a\x00b", "x" * 5000),
    *([], {}, [[]], [None], [1, "a"], {"a": {"b": []}}, {"1": None}, [{"content": None}]),
]
# what transformers reads though our own configurations have no field for it
_READ_FROM_CONFIG = ("quantization_config", "dtype", "auto_map", "architectures", "attn_implementation", "num_labels")
_QUANTIZATION = [
    {"quant_method": method, **more}
    for method in (None, [], "x", "bitsandbytes", "gptq", "awq", "fp8", "torchao", "compressed-tensors", "finegrained")
    for more in ({}, {"bits": "x", "modules_to_not_convert": 3}, {"load_in_8bit": True, "config_groups": []})
]
INDEX = "model.safetensors.index.json"
_WEIGHTS, SHARD = "model.safetensors", "model-00001-of-00001.safetensors"


def split_weights(folder: Path, shard: str = SHARD) -> Path:
    """Give a folder an index in place of its one file of weights; returns the index."""
    data = (folder / _WEIGHTS).read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    names = [name for name in json.loads(data[8 : 8 + size]) if name != "__metadata__"]
    (folder / _WEIGHTS).rename(folder / SHARD)
    index = {"metadata": {"total_size": len(data) - 8 - size}, "weight_map": dict.fromkeys(names, shard)}
    (folder / INDEX).write_text(json.dumps(index))
    return folder / INDEX


def break_folder(folder: Path, rng: random.Random) -> str:
    """Break one file of a saved model; returns what was done."""
    files = sorted(path for path in folder.rglob("*.json") if path.name != INDEX)
    files += [folder / _WEIGHTS, folder / INDEX, folder / "config.json"]
    path = rng.choice(files)
    if path.name == INDEX:
        split_weights(folder)
    how = _break_weights if path.name == _WEIGHTS else _break_json
    return f"{path.relative_to(folder)}: {how(path, rng)}"


def _break_json(path: Path, rng: random.Random) -> str:
    if rng.random() < 0.2:
        return _break_bytes(path, rng)
    content = json.loads(path.read_text())
    if path.name == "config.json" and rng.random() < 0.4:
        name = rng.choice(_READ_FROM_CONFIG)
        content[name] = rng.choice(_QUANTIZATION if name == "quantization_config" and rng.random() < 0.7 else JUNK)
        what = f"{name} = {content[name]!r:.60}"
    else:
        content, what = _changed(content, rng)
    path.write_text(json.dumps(content))
    return what


def _break_bytes(path: Path, rng: random.Random) -> str:
    data = path.read_bytes()
    cut = rng.randrange(len(data))
    name, data = rng.choice(
        [
            ("cut", data[:cut]),
            ("emptied", b""),
            ("null", b"null"),
            ("list", b"[]"),
            ("number", b"1" * 5000),
            ("nested", b"[" * 100_000),
            ("no text", b"\xff\xfe" + data),
            ("bytes changed", data[:cut] + rng.randbytes(8) + data[cut + 8 :]),
        ]
    )
    path.write_bytes(data)
    return name


def _break_weights(path: Path, rng: random.Random) -> str:
    if rng.random() < 0.4:
        return _break_bytes(path, rng)
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header, what = _changed(json.loads(data[8 : 8 + size]), rng)
    header = json.dumps(header).encode()
    size = rng.choice([len(header)] * 5 + [0, 10**9, 2**64 - 1])
    path.write_bytes(struct.pack("<Q", size) + header + data[8 + struct.unpack("<Q", data[:8])[0] :])
    return f"header {what}, length {size}"


def _places(content: Any) -> Iterator[tuple[Any, Any]]:
    """Every container in a JSON value with every key or index of it."""
    for key in content if isinstance(content, dict) else range(len(content)) if isinstance(content, list) else ():
        yield content, key
        yield from _places(content[key])


def _changed(content: Any, rng: random.Random) -> tuple[Any, str]:
    """A copy with something else in one place, and a few words on it."""
    content = copy.deepcopy(content)
    shallow = [(content, key) for key in (content if isinstance(content, dict) else range(len(content)))]
    container, key = rng.choice(shallow if rng.random() < 0.6 else list(_places(content)))
    if rng.random() < 0.2:
        del container[key]
        return content, f"without {key!r:.40}"
    container[key] = rng.choice(JUNK)
    return content, f"{key!r:.40} = {container[key]!r:.60}"
