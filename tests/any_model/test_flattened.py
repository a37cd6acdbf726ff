"""sentence-transformers without padding: a batch as one packed row."""

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

from reluformers.attentions import flatten_inputs

from .test_by_name import MODELS, build

sentence_transformers = pytest.importorskip("sentence_transformers")
TEXTS = ["3 4 5 6 7 8 9", "4", "5 6 7", "8 9 3 4 5"]


def encoder(name, attention, folder, opened_with=None):
    build(name, attention).base_model.save_pretrained(folder)
    tokens = {str(number): number for number in range(99)}
    backend = Tokenizer(models.WordLevel(tokens, unk_token="2"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    pad = str(MODELS[name][1]["pad_token_id"])
    transformers.PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="2", pad_token=pad).save_pretrained(
        folder
    )
    keywords = {"attn_implementation": opened_with or attention, "allow_all_kernels": True}
    options = {"model_kwargs": keywords, "device": "cpu"}
    return sentence_transformers.SentenceTransformer(str(folder), **options)


@pytest.mark.parametrize("name", ["bert", "roberta", "modernbert"])
def test_sentences_in_one_row_are_embedded_as_with_padding(name, tmp_path):
    model = encoder(name, "relu_attention", tmp_path)
    expected = model.encode(TEXTS, convert_to_tensor=True)
    seen = []
    words = model[0].model.get_input_embeddings()
    words.register_forward_pre_hook(lambda module, given: seen.append(tuple(given[0].shape)))
    found = flatten_inputs(model).encode(TEXTS, convert_to_tensor=True)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert seen == [(1, 16)]


def test_a_model_with_another_attention_is_not_flattened(tmp_path):
    with pytest.raises(ValueError, match="sdpa"):
        flatten_inputs(encoder("bert", "sdpa", tmp_path))
