"""How well a score finds bad sentence pairs: pairs made bad in a known share, and what a score makes of them."""

from collections.abc import Callable, Sequence

import numpy as np

Pair = tuple[str, str]


def shuffled(pairs: Sequence[Pair], others: Sequence[str], rng: np.random.Generator) -> list[Pair]:
    """Pairs with each other's targets, none with its own."""
    return [(source, pairs[number - 1][1]) for number, (source, _) in enumerate(pairs)]


def wrong_language(pairs: Sequence[Pair], others: Sequence[str], rng: np.random.Generator) -> list[Pair]:
    """Pairs with a translation into another language, or with what else `others` holds."""
    return [(source, other) for (source, _), other in zip(pairs, others, strict=True)]


def inserted_words(pairs: Sequence[Pair], others: Sequence[str], rng: np.random.Generator) -> list[Pair]:
    """Pairs whose target has a run of another's words in it, half as many as its own and at least two."""
    changed = []
    for number, (source, target) in enumerate(pairs):
        words, donor = target.split(), pairs[number - 1][1].split()
        length = min(max(len(words) // 2, 2), len(donor))
        start, place = rng.integers(len(donor) - length + 1), rng.integers(len(words) + 1)
        changed.append((source, " ".join([*words[:place], *donor[start : start + length], *words[place:]])))
    return changed


CORRUPTIONS: dict[str, Callable[[Sequence[Pair], Sequence[str], np.random.Generator], list[Pair]]] = {
    "shuffled": shuffled,
    "wrong language": wrong_language,
    "inserted words": inserted_words,
}


def corrupt(
    pairs: Sequence[Pair], kind: str, share: float, *, others: Sequence[str], seed: int
) -> tuple[list[Pair], np.ndarray]:
    """Make a share of the pairs bad.

    Args:
        pairs: source and target.
        kind: one of `CORRUPTIONS`.
        share: of pairs that are made bad, in (0, 1); two at least.
        others: for each pair a text in a wrong language.
        seed: chooses them.

    Returns:
        All pairs in their order, and which are bad    bool [pairs].

    Raises:
        ValueError: the kind or the share is not allowed, there are fewer than three pairs, or none has changed.
    """
    if kind not in CORRUPTIONS:
        raise ValueError(f"kind is {kind!r}, but must be one of {', '.join(CORRUPTIONS)}")
    if not 0 < share < 1 or len(pairs) < 3:
        raise ValueError(f"share must be between 0 and 1 and pairs at least 3, got {share} and {len(pairs)}")
    rng = np.random.default_rng(seed)
    rows = rng.permutation(len(pairs))[: min(max(round(share * len(pairs)), 2), len(pairs) - 1)]
    changed = list(pairs)
    bad = CORRUPTIONS[kind]([pairs[row] for row in rows], [others[row] for row in rows], rng)
    for row, pair in zip(rows, bad, strict=True):
        changed[row] = pair
    # a change that changes nothing, as by an empty target, makes no pair bad
    is_bad = np.array([now != before for now, before in zip(changed, pairs, strict=True)])
    if not is_bad.any():
        raise ValueError(f"{kind} changes none of the pairs that were drawn")
    return changed, is_bad


def length_ratio(pairs: Sequence[Pair]) -> np.ndarray:
    """How far the ratio of lengths is from the usual one: |r − median r| with r = log of the ratio in characters."""
    ratios = np.log([(len(target) + 1) / (len(source) + 1) for source, target in pairs])
    return np.abs(ratios - np.median(ratios))


def roc_auc(scores: Sequence[float], is_bad: np.ndarray) -> float:
    """Probability that a bad pair has a higher score than a good one, a tie counted half, in [0, 1].

    Source: Mann and Whitney 1947.
    """
    _, places, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[places]
    bad, good = int(is_bad.sum()), int((~is_bad).sum())
    return float((ranks[is_bad].sum() - bad * (bad + 1) / 2) / (bad * good))


def precision_at_share(scores: Sequence[float], is_bad: np.ndarray) -> float:
    """Share of bad ones among the pairs of the highest scores, as many as there are bad ones, in [0, 1].

    Of pairs of equal scores at the border as many count as there is room, each as their mean.
    """
    scores, room = np.asarray(scores), int(is_bad.sum())
    border = np.sort(scores)[-room]
    above, at_border = scores > border, scores == border
    return float((is_bad[above].sum() + (room - above.sum()) * is_bad[at_border].mean()) / room)
