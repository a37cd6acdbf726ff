"""Translates a sentence or classifies an image, and shows the attention that did it.

It is the app of a Space and runs at home as well: `python app.py MODEL`, with the folder or the Hub id of a model. The
code that lies beside the model's weights is executed, so name a model that you trust; a Space pins its revision.
"""

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

# `space_files` fills these in; the command line comes first.
MODEL_ID = ""
MODEL_REVISION = ""

# A clone has this model, which opens if none is named.
CLONED_MODELS = [
    os.path.join(os.path.dirname(__file__), "..", "..", "models", name)
    for name in ("tatoeba-en-de", "tatoeba-de-en", "digits-relu-vit")
]
# Only these variables reach code of a folder, as any other may be a token.
PASSED = re.compile(
    r"PATH|HOME|USER|LANG|LANGUAGE|LC_[A-Z]+|TZ|TMPDIR|LD_LIBRARY_PATH|XDG_[A-Z_]+"
    r"|SYSTEMROOT|TEMP|TMP|USERPROFILE|APPDATA|LOCALAPPDATA|GRADIO_[A-Z_]+"
    r"|HF_HOME|HF_HUB_CACHE|HF_MODULES_CACHE|HF_HUB_OFFLINE|(?:CUDA|HIP|ROCR|NVIDIA)_VISIBLE_DEVICES|CUDA_HOME"
    r"|(?:OMP|MKL|KMP|OPENBLAS|TORCH|PYTORCH|TRITON|RELUFORMERS)_[A-Z_]+|TOKENIZERS_PARALLELISM"
)


STARTED_ANEW = "RELUFORMERS_STARTED_ANEW"  # It holds the number of the process that has no tokens.


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the page."""
    parser.add_argument(
        "models", nargs="*", metavar="MODEL", help="one or two folders or Hub ids; without one, the models of models/"
    )
    parser.add_argument("--revision", help="branch, tag or commit of a Hub id")
    parser.add_argument("--compare", metavar="MODEL", help="the second model, for the same input")
    parser.add_argument(
        "--example",
        metavar="INPUT",
        action="append",
        help="text or image file to begin with; may be repeated. Without it, examples of the model's results.json or "
        "card",
    )
    parser.add_argument("--port", type=int, help="port of the page; without it, the first free port from 7860 on")


def read_arguments(options: argparse.Namespace) -> dict[str, Any]:
    """Arguments of `open_page`; a ValueError for more than two models."""
    arguments = dict(vars(options))
    models = [*arguments.pop("models"), *filter(None, [arguments.pop("compare")])]
    if len(models) > 2:
        raise ValueError(f"a page shows one or two models, got {', '.join(models)}")
    return {**arguments, **dict(zip(("model", "compare"), models, strict=False))}


def cloned_models() -> list[str]:
    """Folders of the models that a clone of the repository brings along."""
    folders = map(os.path.realpath, CLONED_MODELS)
    return [folder for folder in folders if os.path.isfile(os.path.join(folder, "model.safetensors"))]


def drop_tokens() -> None:
    """Start this process anew without the tokens of the environment and that of `hf auth login`.

    Code of a model could read them in the block that the process began with, whatever is deleted later.
    """
    has_exec = os.name != "nt"  # On Windows, exec would start a second process and leave the terminal.
    began = {STARTED_ANEW: str(os.getpid()) if has_exec else "1", "HF_TOKEN_PATH": os.devnull}
    if os.environ.get(STARTED_ANEW) != began[STARTED_ANEW]:
        passed = {name: value for name, value in os.environ.items() if PASSED.fullmatch(name)}
        command = [sys.executable, *sys.orig_argv[1:]]
        environment = {**passed, **began}
        sys.stdout.flush()
        if has_exec:
            os.execve(sys.executable, command, environment)
        sys.exit(subprocess.call(command, env=environment))


def open_page(
    model: str | None = None,
    *,
    revision: str | None = None,
    compare: str | None = None,
    example: Sequence[str] | None = None,
    port: int | None = None,
) -> None:
    """Say where the page will be, load the model and serve until interrupted; arguments as `add_arguments` has them.

    Raises:
        SystemExit: there is no model, it cannot be loaded, or the port is taken; says so in one line.
    """
    name, pinned = (model, revision) if model else (MODEL_ID, revision or MODEL_REVISION or None)
    names = [name] if name else cloned_models()
    try:
        if not name and (not names or revision or compare or example):
            raise ValueError("name a model: its folder or Hub id")
        folders = [*names, *filter(None, [compare])]
        if all(map(os.path.isdir, folders)):
            drop_tokens()  # Only folders: models of the Hub may be private and need the token.
        print(f"Loading {' and '.join(folders)}: the page comes in some seconds", flush=True)
        # torch, transformers and Gradio take seconds to import, so the line is printed first.
        from pages import build_app, build_tabs, serve

        page = build_app(name, pinned, compare=compare, examples=example) if name else build_tabs(names)
        serve(page, port)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"error: {' '.join(str(error).split())}\n")
        sys.exit(2)


def main() -> None:
    parser = argparse.ArgumentParser(description="Show the attention of a model; the code in its folder is executed.")
    add_arguments(parser)
    open_page(**read_arguments(parser.parse_args()))


if __name__ == "__main__":
    main()
