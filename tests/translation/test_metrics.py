"""BLEU and chrF against sacreBLEU itself, known values and bad input."""

import json

import pytest
import sacrebleu
from sacrebleu.metrics import BLEU

from reluformers.translation.metrics import ChrF, SacreBLEU, bleu_options, corpus_score

PREDICTIONS = ["The cat sat on the mat , quietly.", "Hello there, my good friend!", "nothing"]
REFERENCES = ["The cat sat on the mat, quietly.", "Hello there, my old friend!", "something"]


def test_bleu_is_that_of_sacrebleu_with_its_signature():
    result = SacreBLEU().compute(predictions=PREDICTIONS, references=REFERENCES)
    expected = sacrebleu.corpus_bleu(PREDICTIONS, [REFERENCES])
    assert result["score"] == expected.score
    assert result["precisions"] == expected.precisions
    assert result["signature"] == f"nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:{sacrebleu.__version__}"
    json.dumps(result)


def test_chrf_is_that_of_sacrebleu_with_its_signature():
    result = ChrF().compute(predictions=PREDICTIONS, references=REFERENCES)
    assert result["score"] == sacrebleu.corpus_chrf(PREDICTIONS, [REFERENCES]).score
    assert result["signature"] == f"nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:{sacrebleu.__version__}"
    assert ChrF().compute(predictions=PREDICTIONS, references=REFERENCES, word_order=2)["score"] != result["score"]
    json.dumps(result)


def test_bleu_by_hand():
    # precisions 4/5, 3/4, 2/3, 1/2 and no brevity penalty
    result = SacreBLEU().compute(predictions=["a b c d e"], references=["a b c d f"], tokenize="none")
    assert result["score"] == pytest.approx(100 * (4 / 5 * 3 / 4 * 2 / 3 * 1 / 2) ** 0.25)


def test_tokenised_bleu_does_not_split_and_says_so():
    text = {"predictions": ["a b c, d e f"], "references": ["a b c , d e f"]}
    split = SacreBLEU().compute(**text)
    unsplit = SacreBLEU().compute(**text, tokenize="none", force=True)
    assert split["score"] == pytest.approx(100)
    assert unsplit["score"] < 50
    assert "tok:none" in unsplit["signature"]


def test_several_references_may_differ_in_number():
    references = [["x", PREDICTIONS[0]], "Hello there, my old friend!", ["nothing", "x", "y"]]
    result = SacreBLEU().compute(predictions=PREDICTIONS, references=references)
    streams = [["x", references[1], "nothing"], [PREDICTIONS[0], None, "x"], [None, None, "y"]]
    assert result["score"] == sacrebleu.corpus_bleu(PREDICTIONS, streams).score
    assert "nrefs:var" in result["signature"]
    # a better reference counts wherever it stands
    assert result["score"] > SacreBLEU().compute(predictions=PREDICTIONS, references=REFERENCES)["score"]


def test_added_rows_and_batches_count_once():
    metric = SacreBLEU()
    for _ in range(2):  # the second round starts empty
        metric.add(prediction=PREDICTIONS[0], reference=REFERENCES[0])
        metric.add_batch(predictions=PREDICTIONS[1:], references=REFERENCES[1:])
        assert metric.compute()["score"] == sacrebleu.corpus_bleu(PREDICTIONS, [REFERENCES]).score


def test_empty_predictions_are_scored():
    assert SacreBLEU().compute(predictions=["", ""], references=["a b", "c"])["score"] == 0


@pytest.mark.parametrize(
    ("predictions", "references"),
    [([], []), (["a"], ["a", "b"]), (["a", None], ["a", "b"]), (["a", "b"], ["a", []]), (["a", "b"], ["a", ["b", 3]])],
)
def test_bad_input_is_refused_and_leaves_the_metric_usable(predictions, references):
    metric = SacreBLEU()
    with pytest.raises(ValueError, match="predictions"):
        metric.compute(predictions=predictions, references=references)
    result = metric.compute(predictions=PREDICTIONS, references=REFERENCES)
    assert result["score"] == sacrebleu.corpus_bleu(PREDICTIONS, [REFERENCES]).score


def test_nothing_is_written(tmp_path):
    for metric in (SacreBLEU(cache_dir=str(tmp_path / "cache")), ChrF(cache_dir=str(tmp_path / "cache"))):
        metric.compute(predictions=PREDICTIONS, references=REFERENCES)
    assert not (tmp_path / "cache").exists()


def test_bleu_counts_words_as_the_language_has_them():
    outputs, references = ["我喜歡喝綠茶。", "他住在北京"], [["我喜歡喝綠茶。"], ["他住在北京市"]]
    found = [corpus_score(BLEU, bleu_options(language), outputs, references)[0].score for language in ("zh_TW", "de")]
    assert found[0] > 80 > found[1]
    assert bleu_options("de", "none")["tokenize"] == "none"
    with pytest.raises(ValueError, match="tokenize 'words' is not one of"):
        bleu_options("de", "words")
