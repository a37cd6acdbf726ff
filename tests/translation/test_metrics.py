"""BLEU and chrF against sacreBLEU itself and known values."""

import json

import sacrebleu
from sacrebleu.metrics import BLEU

from reluformers.translation.metrics import ChrF, SacreBLEU, bleu_options, choose_examples, corpus_score

PREDICTIONS = ["The cat sat on the mat , quietly.", "Hello there, my good friend!", "nothing"]
REFERENCES = ["The cat sat on the mat, quietly.", "Hello there, my old friend!", "something"]


def test_scores_are_those_of_sacrebleu_with_its_signatures(tmp_path):
    metrics = [metric(cache_dir=str(tmp_path / "cache")) for metric in (SacreBLEU, ChrF)]
    bleu, chrf = (metric.compute(predictions=PREDICTIONS, references=REFERENCES) for metric in metrics)
    expected = sacrebleu.corpus_bleu(PREDICTIONS, [REFERENCES])
    assert (bleu["score"], bleu["precisions"]) == (expected.score, expected.precisions)
    assert bleu["signature"] == f"nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:{sacrebleu.__version__}"
    assert chrf["score"] == sacrebleu.corpus_chrf(PREDICTIONS, [REFERENCES]).score
    assert chrf["signature"] == f"nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:{sacrebleu.__version__}"
    with_words = metrics[1].compute(predictions=PREDICTIONS, references=REFERENCES, word_order=2)
    assert with_words["score"] != chrf["score"]
    json.dumps([bleu, chrf])
    assert not list(tmp_path.iterdir())


def test_several_references_may_differ_in_number():
    references = [["x", PREDICTIONS[0]], ["Hello there, my old friend!"], ["nothing", "x", "y"]]
    result = SacreBLEU().compute(predictions=PREDICTIONS, references=references)
    streams = [["x", *references[1], "nothing"], [PREDICTIONS[0], None, "x"], [None, None, "y"]]
    assert result["score"] == sacrebleu.corpus_bleu(PREDICTIONS, streams).score
    assert "nrefs:var" in result["signature"]
    # a better reference counts wherever it stands
    assert result["score"] > SacreBLEU().compute(predictions=PREDICTIONS, references=REFERENCES)["score"]


def test_bleu_counts_words_as_the_language_has_them():
    outputs, references = ["我喜歡喝綠茶。", "他住在北京"], [["我喜歡喝綠茶。"], ["他住在北京市"]]
    found = [corpus_score(BLEU, bleu_options(language), outputs, references)[0].score for language in ("zh_TW", "de")]
    assert found[0] > 80 > found[1]
    assert bleu_options("de", "none")["tokenize"] == "none"


ROWS = [
    ("a dog", "ein Hund", "eine Katze"),
    ("a cat", "eine Katze", "eine Katze"),
    ("a cat", "eine Katze", "eine Katze"),
    ("a house", "ein Haus", "ein Hauch"),
    (" ", "", ""),
    ("a tree", "ein Baum", ""),
    ("a car", "ein Auto", "ein Auto"),
]


def test_examples_are_the_right_translations_and_then_the_nearest():
    examples = choose_examples(*zip(*ROWS, strict=True), count=4)
    assert [example["source"] for example in examples] == ["a cat", "a car", "a house", "a dog"]
    assert examples[2] == {"source": "a house", "reference": "ein Haus", "output": "ein Hauch"}
    assert choose_examples(*zip(*ROWS, strict=True), count=1) == examples[:1]
    assert choose_examples([], [], []) == []
    rows = choose_examples(["A", "B", "A"], ["a", "b", "a"], ["a", "b", "a"], count=1)
    assert [row["source"] for row in rows] == ["A"]  # of equal sources the earlier
