"""Text of the causal table: cleaned, once, and held out by document."""

from reluformers_research.causal.rows import load_stream, load_tokenizer
from reluformers_research.causal.text import (
    clean,
    read_documents,
    split_documents,
    write_characters,
)


def rows(name, count, text="sentence {} of {}"):
    return [
        {"doc_id": name, "translation": {"en": text.format(number, name), "de": "Satz " + text.format(number, name)}}
        for number in range(count)
    ]


def documents(*groups):
    return [document for group in groups for document in read_documents(group, "source")]


def test_a_sentence_is_cleaned():
    assert clean("  a\u0301 \t b\x00\u200a c ") == "á b c"


def test_no_training_sentence_is_held_out_or_stands_twice():
    groups = [rows(f"talk {number}", 6) for number in range(100)]
    copies = [rows(f"talk {number}", 6) for number in range(50)]
    for copy in copies:  # under another name, which may be held out
        for row in copy:
            row["doc_id"] += " again"
    splits = split_documents(documents(*groups, *copies))
    of = {
        split: [(one.language, text) for one in in_split for text in one.sentences]
        for split, in_split in splits.items()
    }
    assert len(of["train"]) == len(set(of["train"]))
    assert all(len(one.sentences) >= 5 for in_split in splits.values() for one in in_split)
    assert not set(of["train"]) & set(of["validation"] + of["test"])
    assert sum(map(len, of.values())) == 1200


def test_characters_are_the_tokens_of_a_plain_text(tmp_path):
    text = "To be,\nor not to be\n" * 10
    (tmp_path / "text.txt").write_text(text)
    write_characters(tmp_path / "text.txt", tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.get_vocab_size() == len(set(text)) + 1
    streams = [load_stream(str(tmp_path / f"{name}.parquet"), name, tokenizer) for name in ("train", "validation")]
    assert [len(stream) - 1 for stream in streams] == [180, 20]
    assert "".join(tokenizer.decode(stream[:-1].tolist()) for stream in streams) == text
