"""Word alignments from cross-attention: by a model that looks where it is told to, and by hand."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from builders.models import build_model
from reluformers import TranslationPipeline
from reluformers.evaluation import alignments
from reluformers.evaluation.alignments import best_layer, measure_layers, word_alignments
from reluformers.translation.tokenization import train_tokenizer

WORDS = ["Anna", "Berlin", "2024", "12", "Oslo", "77", "Rome", "Paul"]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer([" ".join(WORDS)] * 3, 60, min_frequency=1)


@pytest.fixture(scope="module")
def pairs():
    sources = [" ".join(WORDS[(start + step) % 8] for step in range(3 + start % 4)) for start in range(20)]
    # the words of the target stand the other way round
    targets = [" ".join(reversed(source.split())) for source in sources]
    return {"source": sources, "target": targets}


class Looking(nn.Module):
    """Layers look: at the first token; at the token that is the same, head 1 alone; there one step later; nowhere."""

    def __init__(self):
        super().__init__()
        self.config = SimpleNamespace(decoder_layers=4, max_position_embeddings=99)
        self.device = torch.device("cpu")

    def forward(self, input_ids, attention_mask, labels, **kwargs):
        assert not self.training
        same = (labels[:, :, None] == input_ids[:, None, :]).float()
        first, nothing = torch.zeros_like(same), torch.zeros_like(same)
        first[:, :, 0] = 1
        late = torch.cat([nothing[:, :1], same[:, :-1]], 1)
        layers = [[first, first], [0.4 * first, same], [late, late], [nothing, nothing]]
        return SimpleNamespace(cross_attentions=tuple(torch.stack(heads, 1) for heads in layers), logits=None)


def reversed_links(source: str) -> list:
    last = len(source.split()) - 1
    return [(last - word, word) for word in range(last + 1)]


def test_alignments_of_a_model_that_looks_where_it_is_told_to(tokenizer, pairs, monkeypatch):
    monkeypatch.setattr(alignments, "MAX_TOKENS", 50)
    rows = list(zip(pairs["source"], pairs["target"], strict=True))
    model = Looking().train()
    aligned = list(word_alignments(model, (tokenizer, tokenizer), rows))
    assert model.training
    for (source, _), layers in zip(rows, aligned, strict=True):
        first, same, late, nowhere = layers
        assert first == [(0, word) for word in range(len(source.split()))]
        assert same == reversed_links(source)
        assert late == [(link, word + 1) for link, word in reversed_links(source)[:-1]]
        assert nowhere == []


def test_subwords_are_summed_and_the_end_token_is_left_out():
    """By hand: two tokens for the target word, two for the second source word; the end has most of the weight."""
    tokenizer = train_tokenizer(["ab ab cd cd x y"], 60, min_frequency=9)  # letters and nothing longer
    pieces = [tokenizer.convert_ids_to_tokens(tokenizer(text)["input_ids"]) for text in ("x cd", "ab")]
    assert [len(side) for side in pieces] == [6, 4]  # ▁ x ▁ c d </s> and ▁ a b </s>
    weights = torch.zeros(1, 2, 1, 4, 6)
    weights[0, 0, 0, 1] = torch.tensor([0.0, 0.4, 0.0, 0.3, 0.2, 0.1])
    weights[0, 1, 0, 1:3] = torch.tensor([[0.0, 0.2, 0.0, 0.0, 0.0, 0.8], [0.0, 0.0, 0.0, 0.1, 0.0, 0.9]])
    weights[0, :, :, 3] = torch.tensor([0.0, 0.0, 1.0, 0.0, 0.0, 0.0])

    class Fixed(Looking):
        def forward(self, **kwargs):
            return SimpleNamespace(cross_attentions=tuple(weights.unbind(1)), logits=None)

    (aligned,) = word_alignments(Fixed(), (tokenizer, tokenizer), [("x cd", "ab")])
    assert aligned == [[(1, 0)], [(0, 0)]]  # layer 0: x 0.4, cd 0.5; layer 1: x 0.2, cd 0.1


@pytest.mark.parametrize(("layer", "head", "shifted"), [(2, 2, False), (0, None, True), (None, None, False)])
def test_the_pipeline_aligns_by_the_configuration(tokenizer, layer, head, shifted):
    fields = {"alignment_layer": layer, "alignment_head": head, "alignment_shifted": shifted}
    model = build_model("reluformer", vocab_size=len(tokenizer), **fields)
    pipe = TranslationPipeline(model, tokenizer, device="cpu", max_new_tokens=9)
    source = "Anna Oslo 2024"
    # whole words, so that the translation has the same tokens when it is read again
    others = [token for word, token in tokenizer.get_vocab().items() if word.removeprefix("▁") not in WORDS]
    (answer,) = pipe(source, return_alignments=True, suppress_tokens=others)
    words = answer["translation_text"].split()
    inputs = tokenizer(source, text_target=" ".join(words), return_tensors="pt")
    assert inputs["labels"].shape[1] == len(words) + 1  # Each word is a token, and </s> is the last one.
    with torch.no_grad():
        weights = model.eval()(**inputs, output_attentions=True).cross_attentions[1 if layer is None else layer][0]
    weights = weights.mean(0) if head is None else weights[head]
    rows = weights[1:] if shifted else weights[:-1]
    expected = [int(row.argmax()) if row.any() else None for row in rows[:, :-1]]
    assert [link["target"] for link in answer["alignments"]] == words
    assert [link["source_index"] for link in answer["alignments"]] == expected


@pytest.mark.parametrize(("shares", "layer"), [([0.2, 0.3, 0.9], 2), ([0.9, 0.9, 0.9], 1), ([1.0], 0)])
def test_the_best_layer(shares, layer):
    assert best_layer(shares) == layer


def test_a_layer_that_looks_at_the_same_word_has_all_links(tokenizer, pairs):
    shares, layer = measure_layers(Looking(), (tokenizer, tokenizer), pairs)
    links = sum(len(source.split()) for source in pairs["source"])
    assert layer == 1
    assert shares == pytest.approx([20 / links, 1, shares[2], 0])
