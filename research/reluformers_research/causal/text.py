"""Makes the text that causal models are compared on: cleaned, without repetitions, held out by document.

python -m reluformers_research.causal.text train.jsonl.gz talks.jsonl.gz … --output runs/causal_text
python -m reluformers_research.causal.text shakespeare.txt --output runs/shakespeare

A .txt is one text whose characters are the tokens; its last tenth is validation.parquet, as in nanoGPT. Otherwise a
row of the files is `{"translation": {"en": …, "de": …}, "doc_id": …}`, sentence after sentence of each document; any
number of languages. Documents of fewer than five sentences, once repetitions are left out, are no text to go on with
and are left out. Written are train.parquet, validation.parquet and test.parquet with a document a row, and the
byte-level BPE tokenizer.json.
"""

import argparse
import hashlib
import itertools
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from datasets import Dataset, load_dataset
from tokenizers import ByteLevelBPETokenizer, Regex, Tokenizer, decoders, models, pre_tokenizers

from reluformers.errors import run_main

END = "<end>"
START = 0  # its number: what a document ends with, a row begins with
_HELD_OUT = 0.03  # of the documents, for the validation and the test set each
_LEAST_SENTENCES = 5  # of a document


@dataclass
class Document:
    """Sentences that follow one another in one language."""

    name: str
    language: str
    sentences: list[str]

    @property
    def split(self) -> str:
        """Where it belongs: by the hash of its name, so for all languages alike."""
        share = int.from_bytes(hashlib.sha256(self.name.encode()).digest()[:4], "big") / 2**32
        if share < _HELD_OUT:
            return "validation"
        return "test" if share < 2 * _HELD_OUT else "train"


def clean(text: str) -> str:
    """A sentence in NFC, with single blanks and without characters of control."""
    text = unicodedata.normalize("NFC", " ".join(text.split()))
    return "".join(letter for letter in text if unicodedata.category(letter) != "Cc")


def read_documents(rows: Iterable[dict], source: str) -> Iterator[Document]:
    """Documents of the rows of one file; a `ValueError` where a row has none."""

    def name_of(row: dict) -> str:
        if row.get("doc_id") is None:
            raise ValueError(f"{source}: a row has no doc_id; give sentences that follow one another in documents")
        return f"{source}/{row['doc_id']}"

    for name, group in itertools.groupby(rows, name_of):
        sentences: dict[str, list[str]] = {}
        for row in group:
            for language, text in row["translation"].items():
                if isinstance(text, str) and (cleaned := clean(text)):
                    sentences.setdefault(language, []).append(cleaned)
        for language, texts in sentences.items():
            yield Document(name, language, texts)


def split_documents(documents: Iterable[Document]) -> dict[str, list[Document]]:
    """Documents by split, without what stood before; held-out ones first, so that no training sentence is held out."""
    splits: dict[str, list[Document]] = {"validation": [], "test": [], "train": []}
    for document in documents:
        splits[document.split].append(document)
    seen: set[tuple[str, str]] = set()
    for split, in_split in splits.items():
        kept = []
        for document in in_split:
            fresh = [one for one in dict.fromkeys(document.sentences) if (document.language, one) not in seen]
            if len(fresh) >= _LEAST_SENTENCES:
                seen.update((document.language, one) for one in fresh)
                kept.append(Document(document.name, document.language, fresh))
        splits[split] = kept
    return splits


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> ByteLevelBPETokenizer:
    """Byte-level BPE with `END` as token 0."""
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(texts, vocab_size, min_frequency=0, special_tokens=[END], show_progress=False)
    return tokenizer


def write_characters(file: Path, output: Path) -> None:
    """Write a text, its last tenth held out, and the tokenizer of its characters."""
    text = file.read_text(encoding="utf-8")
    border = len(text) * 9 // 10
    for split, part in (("train", text[:border]), ("validation", text[border:])):
        Dataset.from_list([{"text": part}]).to_parquet(output / f"{split}.parquet")
    vocabulary = {END: START, **{letter: number for number, letter in enumerate(sorted(set(text)), START + 1)}}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=END))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.save(str(output / "tokenizer.json"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", metavar="FILE", help="rows of sentence pairs, or one .txt")
    parser.add_argument("--output", type=Path, required=True, help="folder")
    parser.add_argument("--vocab_size", type=int, default=4096)
    options = parser.parse_args()
    if [Path(file).suffix for file in options.files] == [".txt"]:
        options.output.mkdir(parents=True, exist_ok=True)
        return write_characters(Path(options.files[0]), options.output)
    documents = (
        document
        for file in options.files
        for document in read_documents(
            load_dataset("json", data_files=file, split="train"), Path(file).resolve().parent.name
        )
    )
    splits = split_documents(documents)
    if not splits["validation"] or not splits["test"]:
        raise ValueError("no document is held out: give more of them")
    options.output.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer(
        (one for document in splits["train"] for one in document.sentences), options.vocab_size
    )
    tokenizer.save(str(options.output / "tokenizer.json"))
    for split, in_split in splits.items():
        rows = [{"text": "\n".join(one.sentences), "language": one.language, "document": one.name} for one in in_split]
        Dataset.from_list(rows).to_parquet(options.output / f"{split}.parquet")
        sentences = sum(len(one.sentences) for one in in_split)
        print(f"{split}: {len(in_split):,} documents, {sentences:,} sentences")


if __name__ == "__main__":
    run_main(main)
