"""Documents cut into rows of limited length, after ReLUFormer (Shen et al. 2023), appendix B."""

from collections.abc import Iterator

from datasets import Dataset
from transformers import PreTrainedTokenizerBase

ROWS_PER_CALL = 1_000


def pack_documents(
    dataset: Dataset,
    source_tokenizer: PreTrainedTokenizerBase,
    target_tokenizer: PreTrainedTokenizerBase,
    limit: int,
) -> Dataset:
    """Join the sentences of each document, in order, until the next one would pass the limit.

    A row holds sentences 1..m of what is left of a document, with Σ₁ᵐ l_i ≤ L < Σ₁ᵐ⁺¹ l_i, and the next row starts
    with sentence m + 1 (ReLUFormer, appendix B). The paper leaves open which side is counted: here the limit holds on
    both sides, and for the joined ids with their closing `</s>`, so a row fits a model of L positions. No sentence is
    split; one that is longer than the limit stands alone. Sentences are joined by a blank, so the count is exact for
    tokenizers that do not merge over blanks, as those of `train_tokenizer`.

    Args:
        dataset: Sentence pairs with "source", "target" (str) and "document" (id), documents in one piece.
        source_tokenizer: Tokenizer that counts "source".
        target_tokenizer: Tokenizer that counts "target".
        limit: L, the most tokens of a row on each side.

    Returns:
        Rows with "source", "target", "document" and "sentences", the number of sentences joined.

    Raises:
        ValueError: If an id is None, or a document is in several pieces.
    """
    documents = dataset["document"][:]
    _check_documents(documents)
    sources, targets = dataset["source"][:], dataset["target"][:]
    source_lengths = _lengths(dataset, "source", source_tokenizer)
    target_lengths = _lengths(dataset, "target", target_tokenizer)
    packed: dict[str, list] = {"source": [], "target": [], "document": [], "sentences": []}
    # the lengths are of sentences; what is added once per row, </s>, comes off the limit
    room = (limit - source_tokenizer.num_special_tokens_to_add(), limit - target_tokenizer.num_special_tokens_to_add())
    for start, stop in _spans(documents, source_lengths, target_lengths, room):
        packed["source"].append(_join(sources[start:stop]))
        packed["target"].append(_join(targets[start:stop]))
        packed["document"].append(documents[start])
        packed["sentences"].append(stop - start)
    return Dataset.from_dict(packed)


def _spans(
    documents: list, source_lengths: list[int], target_lengths: list[int], room: tuple[int, int]
) -> Iterator[tuple[int, int]]:
    start = source_sum = target_sum = 0
    for index, (source, target) in enumerate(zip(source_lengths, target_lengths, strict=True)):
        full = source_sum + source > room[0] or target_sum + target > room[1]
        if index > start and (full or documents[index] != documents[start]):
            yield start, index
            start, source_sum, target_sum = index, 0, 0
        source_sum += source
        target_sum += target
    if documents:
        yield start, len(documents)


def _lengths(dataset: Dataset, column: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    options = {"add_special_tokens": False, "return_attention_mask": False, "verbose": False}
    batches = dataset.select_columns([column]).iter(batch_size=ROWS_PER_CALL)
    return [len(ids) for batch in batches for ids in tokenizer(batch[column], **options)["input_ids"]]


def _join(sentences: list[str]) -> str:
    return " ".join(text for text in map(str.strip, sentences) if text)


def _check_documents(documents: list) -> None:
    last_row: dict = {}
    for row, document in enumerate(documents):
        if document is None or last_row.get(document, row - 1) != row - 1:
            raise ValueError(f"row {row + 1}: document {document!r} must be an id, and the rows of one stand together")
        last_row[document] = row
