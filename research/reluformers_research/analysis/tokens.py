"""Classes of tokens, such as punctuation and stop words, by which attention is counted."""

from collections import Counter
from collections.abc import Iterable

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

CLASSES = ("special", "punctuation", "number", "stop word", "word", "part of a word")
STOP_WORDS = 50

_MARKS = ("▁", "Ġ")  # of a blank before a piece
_CONTINUED = "##"  # of none


def token_classes(tokenizer: PreTrainedTokenizerBase, stop_words: Iterable[str] = ()) -> Tensor:
    """The class of every token of a vocabulary, by its number in `CLASSES`.

    special         a special token, or a blank alone
    punctuation     neither letters nor digits
    number          digits, perhaps with punctuation, wherever they stand
    stop word       begins a word, and is one of `stop_words`
    word            begins any other word: all of it, or its first part
    part of a word  continues a word

    Args:
        tokenizer: whose pieces mark a blank before them by ▁ or Ġ, or the lack of one by ##.
        stop_words: in any case; see `frequent_words`.

    Returns:
        int64 [vocab_size].
    """
    stop_words = {word.lower() for word in stop_words}
    pieces = [piece or "" for piece in tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))]
    # the mark of the more pieces: vocabularies of bytes may have some that begin with ## by themselves
    marks_parts = sum(piece.startswith(_CONTINUED) for piece in pieces) > sum(map(_has_blank, pieces))
    special = set(tokenizer.all_special_ids)
    classes = []
    for number, piece in enumerate(pieces):
        # decoded, as byte-level pieces are spelled in other letters
        text = tokenizer.decode([number]).removeprefix(_CONTINUED).strip("".join(_MARKS) + " ")
        begins = not piece.startswith(_CONTINUED) if marks_parts else _has_blank(piece)
        if number in special or not text:
            name = "special"
        elif not any(map(str.isalnum, text)):
            name = "punctuation"
        elif not any(map(str.isalpha, text)):
            name = "number"
        elif not begins:
            name = "part of a word"
        else:
            name = "stop word" if text.lower() in stop_words else "word"
        classes.append(CLASSES.index(name))
    return torch.tensor(classes)


def frequent_words(texts: Iterable[str], number: int = STOP_WORDS) -> list[str]:
    """The most frequent words of texts in lower case, without numbers: stop words of a language that nobody listed.

    Args:
        texts: of one language; words are what stands between blanks, without punctuation around it.
        number: how many, of equally frequent ones the first to occur.
    """
    counts = Counter(word.lower() for text in texts for word in map(_bare, text.split()))
    return [word for word, _ in counts.most_common() if any(map(str.isalpha, word))][:number]


def token_texts(tokenizer: PreTrainedTokenizerBase, ids: Iterable[int]) -> list[str]:
    """Tokens as somebody can read them, with "▁" for a blank before one."""
    ids, texts = list(ids), []
    for number, piece in zip(ids, tokenizer.convert_ids_to_tokens(ids), strict=True):
        mark = "▁" if _has_blank(piece) else ""
        texts.append((mark + tokenizer.decode([number]).strip()) or piece)
    return texts


def _has_blank(piece: str) -> bool:
    return piece.startswith(_MARKS)


def _bare(word: str) -> str:
    """A word without punctuation around it."""
    places = [place for place, character in enumerate(word) if character.isalnum()]
    return word[places[0] : places[-1] + 1] if places else ""
