"""Finds keys and tokens by the shapes that their makers gave them, and places of a machine."""

import binascii
import re
from bisect import bisect
from collections import defaultdict
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import numpy as np

# What a key is, what it begins with, at least three characters, and its whole shape. The beginnings are looked for
# first, as weights are large. Shapes without one, such as 40 hexadecimal digits, look like checksums and are left out.
_SHAPES = (
    ("a token of the Hub", "hf_", r"hf_[A-Za-z0-9]{20,}"),
    ("a key of AWS", "AKIA ASIA", r"A[KS]IA[A-Z2-7]{16}(?![A-Za-z0-9])"),
    ("a key of AWS", "aws_ AWS_", r"(?i:aws_secret_access_key)\W{1,5}[A-Za-z0-9/+]{40}(?![A-Za-z0-9/+])"),
    ("a token of GitHub", "ghp_ gho_ ghu_ ghs_ ghr_", r"gh[pousr]_[A-Za-z0-9]{36,}"),
    ("a token of GitHub", "github_pat_", r"github_pat_\w{36,}"),
    (
        "a token of GitLab",
        "glpat glrt gldt glft glsoat glcbt glimt",
        r"gl(?:pat|rt|dt|ptt|ft|soat|cbt|imt)-[\w-]{20,}",
    ),
    # OpenAI, Anthropic, OpenRouter; the plain form needs a digit, so that no long word after sk- is one
    ("a key of OpenAI or Anthropic", "sk-", r"sk-(?:ant|proj|svcacct|admin|or)-[\w-]{20,}"),
    ("a key of OpenAI or a like service", "sk-", r"sk-(?=[A-Za-z]*[0-9])[A-Za-z0-9]{32,}"),
    ("a key of Groq", "gsk_", r"gsk_[A-Za-z0-9]{40,}"),
    ("a key of xAI", "xai-", r"xai-[A-Za-z0-9]{60,}"),
    ("a key of Perplexity", "pplx-", r"pplx-[A-Za-z0-9]{40,}"),
    ("a key of NVIDIA", "nvapi-", r"nvapi-[\w-]{60,}"),
    ("a token of Replicate", "r8_", r"r8_[A-Za-z0-9]{37}(?![A-Za-z0-9])"),
    ("a token of Databricks", "dapi", r"dapi[0-9a-f]{32}(?![0-9a-f])"),
    ("a key of Weights & Biases", "WANDB_", r"WANDB_API_KEY\W{1,5}[0-9a-f]{40}(?![0-9a-f])"),
    ("a key of Google", "AIza", r"AIza[\w-]{35}(?![\w-])"),
    ("a client secret of Google", "GOCSPX-", r"GOCSPX-[\w-]{28}(?![\w-])"),
    ("a token of Google", "ya29.", r"ya29\.[\w-]{50,}"),
    ("a key of Azure", "AccountKey=", r"AccountKey=[A-Za-z0-9+/]{86}=="),
    ("a token of Slack", "xox", r"xox[abeoprs]-[A-Za-z0-9]+-[A-Za-z0-9-]{10,}"),
    ("a token of Slack", "xapp-", r"xapp-[0-9]-[A-Z0-9]+-[0-9]+-[a-z0-9]{30,}"),
    ("a webhook of Slack", "hooks.slack.com/", r"hooks\.slack\.com/services/T\w+/B\w+/\w{20,}"),
    ("a token of Telegram", ":AA", r"(?<=[0-9]{8}):AA[\w-]{33}(?![\w-])"),
    ("a key of Twilio", " ".join(f"SK{digit:x}" for digit in range(16)), r"SK[0-9a-f]{32}(?![A-Za-z0-9])"),
    ("a key of Mailchimp", "-us", r"(?<=[0-9a-f]{32})-us[0-9]{1,2}(?!\w)"),
    ("a key of Mailgun", "key-", r"key-[0-9a-f]{32}(?![A-Za-z0-9])"),
    ("a key of SendGrid", "SG.", r"SG\.[\w-]{22}\.[\w-]{43}"),
    ("a token of npm", "npm_", r"npm_[A-Za-z0-9]{36}(?![A-Za-z0-9])"),
    ("a token of PyPI", "pypi-", r"pypi-AgE[\w-]{50,}"),
    ("a token of Docker", "dckr_pat_", r"dckr_pat_[\w-]{27,}"),
    ("a key of Stripe", "sk_live_ sk_test_ rk_live_ rk_test_", r"[sr]k_(?:live|test)_[A-Za-z0-9]{20,}"),
    ("a token of Shopify", "shpat_ shpca_ shppa_ shpss_", r"shp(?:at|ca|pa|ss)_[0-9a-f]{32}"),
    ("a token of Square", "sq0", r"sq0(?:csp|atp)-[\w-]{22,}"),
    ("a token of DigitalOcean", "dop_v1_ doo_v1_ dor_v1_", r"do[opr]_v1_[0-9a-f]{64}"),
    ("a token of Vault", "hvs. hvb.", r"hv[sb]\.[\w-]{80,}"),
    ("a key of Linear", "lin_api_", r"lin_api_[A-Za-z0-9]{40}"),
    ("a token of Notion", "ntn_", r"ntn_[A-Za-z0-9]{40,}"),
    ("a token of Grafana", "glsa_", r"glsa_[A-Za-z0-9]{32}_[0-9a-f]{8}"),
    ("a key of Postman", "PMAK-", r"PMAK-[0-9a-f]{24}-[0-9a-f]{34}"),
    ("a token of Sentry", "sntrys_ sntryu_", r"sntry[su]_[\w=+/-]{40,}"),
    ("a JSON web token", "eyJ", r"eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{20,}"),
    ("a password in an address", "://", r"""://[^\s/:@"'<>{}$]{1,64}:(?!password@)[^\s/:@"'<>{}$*]{8,128}@[\w.-]"""),
    ("a password of .netrc", "machine", r"machine\s+\S{1,80}\s+login\s+\S{1,80}\s+password\s+\S{8,}"),
    ("a private key", "AGE-SECRET-KEY-", r"AGE-SECRET-KEY-1[A-Z0-9]{58}"),
    ("a private key", "-----BEGIN ", r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY(?: BLOCK)?-----"),
)
_PATTERNS: dict[bytes, list[tuple[str, re.Pattern[bytes]]]] = defaultdict(list)  # by the first three bytes
for _what, _starts, _shape in _SHAPES:
    for _start in sorted({start[:3].encode() for start in _starts.split(" ") if start.strip()}):
        _PATTERNS[_start].append((_what, re.compile(_shape.encode(), re.ASCII)))
_WORD_BEFORE = re.compile(rb"(?<!\\)[A-Za-z0-9_]$")
_BLOCK, _OVERLAP = 1 << 21, 1 << 12
_LEAST_BASE64 = 28  # characters, of 20 bytes or more


def _pair_table(place: int) -> np.ndarray:
    """Which pairs of bytes, as numbers, stand at a place of a beginning."""
    table = np.zeros(1 << 16, dtype=bool)
    table[[int.from_bytes(start[place : place + 2], "big") for start in _PATTERNS]] = True
    return table


_FIRST_PAIRS, _SECOND_PAIRS = _pair_table(0), _pair_table(1)
_OF_BASE64 = np.zeros(1 << 8, dtype=bool)
_OF_BASE64[list(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/-_")] = True
_TO_STANDARD = bytes.maketrans(b"-_", b"+/")
# roots under which people keep what is theirs, and those that are alike on every machine
_OWN_ROOTS = frozenset(
    """
    home Users root data datasets mnt media scratch tmp var opt srv work workspace workspaces storage nfs gpfs lustre
    fsx private Volumes content kaggle project projects shared cluster
    """.split()  # noqa: SIM905 (as the list of licences)
)
_COMMON_ROOTS = frozenset(("etc", "usr", "bin", "sbin", "lib", "lib64", "dev", "proc", "sys", "boot", "run"))
_ROOT = re.compile(r"/([^/]+)/")


class Secret(NamedTuple):
    """What was found, and at which byte; never the secret itself."""

    what: str
    position: int


def find_secret(data: bytes | str, *, within_words: bool = False) -> Secret | None:
    """Find the first key or token of a well-known form, be it written in base64.

    Args:
        data: content of a file, or a part of it.
        within_words: whether letters may stand right before it, as in files that are no text.

    Returns:
        What it is and where; None if there is none.
    """
    data = data.encode() if isinstance(data, str) else data
    # by blocks, as arrays of large ones are slow; they overlap by more than a token
    blocks = ((start, data[start : start + _BLOCK + _OVERLAP]) for start in range(0, len(data), _BLOCK))
    found = ((start, _find_in_block(block, within_words)) for start, block in blocks)
    return next((Secret(secret.what, start + secret.position) for start, secret in found if secret), None)


def _find_in_block(data: bytes, within_words: bool) -> Secret | None:
    found = next(_plain_secrets(data, within_words), None)
    places, parts = list(zip(*_decoded(data), strict=True)) or ((), ())
    hidden = next(_plain_secrets(b"\n".join(parts), within_words=False), None)
    if hidden is None:
        return found
    starts = list(accumulate((len(part) + 1 for part in parts), initial=0))
    hidden = Secret(f"{hidden.what} in base64", places[bisect(starts, hidden.position) - 1])
    return min(filter(None, (found, hidden)), key=lambda secret: secret.position)


def is_own_place(path: str) -> bool:
    """Whether a path in a text is of somebody's machine, and neither alike on all nor a name such as /m/01g317."""
    root = _ROOT.match(path)
    if root is None or root[1] in _OWN_ROOTS:
        return True
    return root[1] not in _COMMON_ROOTS and Path("/", root[1]).is_dir()


def _plain_secrets(data: bytes, within_words: bool) -> Iterator[Secret]:
    if len(data) < 3:
        return
    numbers = np.frombuffer(data, dtype=np.uint8)
    pairs = numbers[:-1].astype(np.uint16) << 8 | numbers[1:]
    for position in np.flatnonzero(_FIRST_PAIRS[pairs[:-1]] & _SECOND_PAIRS[pairs[1:]]).tolist():
        for what, pattern in _PATTERNS.get(data[position : position + 3], ()):
            match = pattern.match(data, position)
            if match and (within_words or not _is_inside(data, position) or _is_random(match[0])):
                yield Secret(what, position)


def _is_inside(data: bytes, position: int) -> bool:
    """Whether a word goes on: "task-…" holds no key, but a line break of JSON, written \\n, may stand before one."""
    is_word = data[position : position + 1].isalnum()
    return is_word and _WORD_BEFORE.search(data[max(0, position - 2) : position]) is not None


def _is_random(token: bytes) -> bool:
    """Whether capitals and small letters are mixed as in no word."""
    return min(len(re.findall(kind, token)) for kind in (rb"[A-Z]", rb"[a-z]")) >= len(token) / 5


def _decoded(data: bytes) -> Iterator[tuple[int, bytes]]:
    """What stands in base64, with its place; whatever stands before it may belong to the same run of letters."""
    others = np.flatnonzero(~_OF_BASE64[np.frombuffer(data, dtype=np.uint8)])
    ends = np.concatenate([[-1], others, [len(data)]])
    for run in np.flatnonzero(np.diff(ends) > _LEAST_BASE64).tolist():
        start, end = int(ends[run]) + 1, int(ends[run + 1])
        text = data[start:end].translate(_TO_STANDARD)
        for skipped in range(4):
            whole = (len(text) - skipped) // 4 * 4
            rest = text[skipped + whole :]
            padded = text[skipped : skipped + whole] + (rest + b"=" * (4 - len(rest)) if len(rest) > 1 else b"")
            yield start, binascii.a2b_base64(padded)
