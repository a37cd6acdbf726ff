"""Finds keys and tokens by the shapes that their makers gave them."""

import re
from typing import NamedTuple

# What a key is, what it begins with, and its whole shape. The beginnings are looked for first, as weights are large.
# Shapes without a beginning of their own, such as 40 hexadecimal digits, look like checksums and are left out.
_SHAPES = (
    ("a token of the Hub", "hf_", r"hf_[A-Za-z0-9]{20,}"),
    ("a key of AWS", "AKIA", r"AKIA[A-Z2-7]{16}(?![A-Za-z0-9])"),
    ("a key of AWS", "ASIA", r"ASIA[A-Z2-7]{16}(?![A-Za-z0-9])"),
    *((("a token of GitHub", f"gh{kind}_", rf"gh{kind}_[A-Za-z0-9]{{36,}}")) for kind in "pousr"),
    ("a token of GitHub", "github_pat_", r"github_pat_\w{36,}"),
    ("a token of GitLab", "glpat-", r"glpat-[\w-]{20,}"),
    # OpenAI, Anthropic, OpenRouter; the plain form needs a digit, so that no long word after sk- is one
    ("a key of OpenAI or Anthropic", "sk-", r"sk-(?:ant|proj|svcacct|admin|or)-[\w-]{20,}"),
    ("a key of OpenAI or a like service", "sk-", r"sk-(?=[A-Za-z]*[0-9])[A-Za-z0-9]{32,}"),
    ("a key of Google", "AIza", r"AIza[\w-]{35}(?![\w-])"),
    ("a client secret of Google", "GOCSPX-", r"GOCSPX-[\w-]{28}(?![\w-])"),
    ("a token of Slack", "xox", r"xox[abeoprs]-[A-Za-z0-9]+-[A-Za-z0-9-]{10,}"),
    ("a webhook of Slack", "hooks.slack.com/", r"hooks\.slack\.com/services/T\w+/B\w+/\w{20,}"),
    ("a token of npm", "npm_", r"npm_[A-Za-z0-9]{36}(?![A-Za-z0-9])"),
    ("a token of PyPI", "pypi-", r"pypi-AgE[\w-]{50,}"),
    ("a key of Stripe", "sk_live_", r"sk_live_[A-Za-z0-9]{20,}"),
    ("a token of Replicate", "r8_", r"r8_[A-Za-z0-9]{37}(?![A-Za-z0-9])"),
    ("a private key", "-----BEGIN ", r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY(?: BLOCK)?-----"),
)
_PATTERNS = [(what, start.encode(), re.compile(shape.encode(), re.ASCII)) for what, start, shape in _SHAPES]
_WORD_BEFORE = re.compile(rb"(?<!\\)[A-Za-z0-9_]$")


class Secret(NamedTuple):
    """What was found, and at which byte; never the secret itself."""

    what: str
    position: int


def find_secret(data: bytes | str, *, within_words: bool = False) -> Secret | None:
    """Find the first key or token of a well-known form.

    Args:
        data: content of a file, or a part of it.
        within_words: whether letters may stand right before it, as in files that are no text.

    Returns:
        What it is and where; None if there is none.
    """
    data = data.encode() if isinstance(data, str) else data
    found = []
    for what, start, pattern in _PATTERNS:
        position = data.find(start)
        while position >= 0:
            # "task-…" holds no key, but a line break of JSON, written \\n, may stand before one
            is_inside = _WORD_BEFORE.search(data[max(0, position - 2) : position]) and not within_words
            if not is_inside and pattern.match(data, position):
                found.append(Secret(what, position))
                break
            position = data.find(start, position + 1)
    return min(found, key=lambda secret: secret.position, default=None)
