"""Check a saved model, and push it to the Hub in one commit with a tag. On a terminal, `push` asks before it uploads.

The token comes from `hf auth login` or from HF_TOKEN. If the folder has no README.md, `push` writes a model card.

`push` runs the code of the folder in a process without your token, that has only the folder.

Example:
    reluformers push runs/reluformer ORG/reluformer-multi30k-en-de --space
"""

import argparse
import sys

from reluformers.publish.push import push_to_hub, snippet
from reluformers.publish.space import push_space
from reluformers.training.checkpoints import check_model

from .card import add_card_arguments, card_options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("folder", help="folder of a saved model")
    parser.add_argument("repo_id", metavar="ORG/NAME", help="repository on the Hub; `push` makes it if there is none")
    parser.add_argument("--private", action="store_true", help="keep a new repository private")
    parser.add_argument("--revision", help="tag of the release; without it, README.md's or the next of v1, v2, …")
    parser.add_argument("--space", action="store_true", help="also push a demo, as the Space ORG/NAME-demo")
    parser.add_argument("--endpoint", action="store_true", help="also push a handler.py for an Inference Endpoint")
    parser.add_argument("--trust_code", action="store_true", help="run and push code that the library would not write")
    add_card_arguments(parser.add_argument_group("options of the card, if FOLDER has none"))


def ask(line: str) -> bool:
    """Say who will see a release and, on a terminal, ask whether to go on."""
    print(line, flush=True)
    if sys.stdin is None or not (sys.stdin.isatty() and sys.stdout.isatty()):
        return True
    return input("Push? [y/N] ").strip().lower() in ("y", "yes")


def run(options: argparse.Namespace) -> None:
    """Push."""
    check_model(options.folder)
    release = push_to_hub(
        options.folder,
        options.repo_id,
        private=options.private,
        revision=options.revision,
        trust_code=options.trust_code,
        endpoint=options.endpoint,
        report=print,
        confirm=ask,
        space=f"{options.repo_id}-demo" if options.space else None,
        **card_options(options),
    )
    visible = "private" if release.private else "public"
    done = "is pushed" if release.is_new else "is there already"
    print(f"{release.url}: {release.revision} {done} ({visible}, commit {release.commit})")
    if release.private and not options.private:
        print(f"it stays private as it was; to show it: hf repos settings {options.repo_id} --public")
    if options.space:
        url = push_space(options.repo_id, release.revision, licence=release.licence, private=release.private)
        print(f"{url}: the demo")
    print(f"\n{snippet(release, options.repo_id, options.folder)}")
