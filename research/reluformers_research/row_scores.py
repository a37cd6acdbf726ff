"""What scorers count of each row, so that rows can be drawn again: by the sums any selection of them has a score.

A task's scorer has, beside what `Scorer` asks for,

- `recipe_options`: recipe → options by which a model is scored as its recipe says, beside where the rows are;
- `row_statistics`: answers → metric → what it counts of each row [rows, columns];
- `scores_of_sums`: metric, the main one first → function of such sums.
"""

from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import partial
from typing import Any

import numpy as np
from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.metrics.base import Metric

from reluformers.images.recipe import ImageRecipe
from reluformers.images.scoring import Classified, ImageScorer
from reluformers.translation.decoding import Search
from reluformers.translation.evaluation import TranslationScorer
from reluformers.translation.recipe import TranslationRecipe

# It makes a score from the sums of all columns over the rows.
ScoreOfSums = Callable[[np.ndarray], float]
_ROWS = ("source_lang", "target_lang", "translation_column")
_DOCUMENTS = ("document_column", "document_tokens")


class TranslationRowScorer(TranslationScorer):
    """Counts what BLEU and chrF count of each pair."""

    @staticmethod
    def recipe_options(recipe: TranslationRecipe) -> dict[str, Any]:
        """Languages, documents and search."""
        names = _ROWS if recipe.data.document_tokens is None else (*_ROWS, *_DOCUMENTS)
        rows = {name: getattr(recipe.data, name) for name in names}
        search = {item.name: getattr(recipe.decoding, item.name) for item in fields(Search)}
        return rows | search

    def row_statistics(self, answers: list[str]) -> dict[str, np.ndarray]:
        """What BLEU and chrF count of each pair."""
        references = self.pairs["target"]
        return {
            "bleu": sentence_statistics(self.options.bleu, answers, references),
            "chrf": sentence_statistics(CHRF(), answers, references),
        }

    @staticmethod
    def scores_of_sums() -> dict[str, ScoreOfSums]:
        """BLEU and chrF."""
        return {"bleu": partial(score_of_sums, BLEU()), "chrf": partial(score_of_sums, CHRF())}


class ImageRowScorer(ImageScorer):
    """Counts the hits."""

    @staticmethod
    def recipe_options(recipe: ImageRecipe) -> dict[str, Any]:
        """Columns."""
        return {"image_column": recipe.data.image_column, "label_column": recipe.data.label_column}

    def row_statistics(self, answers: Classified) -> dict[str, np.ndarray]:
        """Hits and images: 1 or 0, and 1."""
        return {"accuracy": np.stack([answers.hits, np.ones(len(answers.hits))], axis=1).astype(np.int64)}

    @staticmethod
    def scores_of_sums() -> dict[str, ScoreOfSums]:
        """Accuracy."""
        return {"accuracy": lambda sums: float(sums[0] / sums[1])}


SCORERS = {"translation": TranslationRowScorer, "image-classification": ImageRowScorer}


def sentence_statistics(metric: Metric, outputs: Sequence[str], references: Sequence[str]) -> np.ndarray:
    """What a corpus metric counts of each sentence, so that any selection of them can be scored by its sums.

    Returns:
        int [sentences, counts]. BLEU counts 10: tokens of the output and of the reference, matching n-grams for n = 1
        to 4, and all n-grams. chrF counts 18: character n-grams of the output, of the reference, and matching ones,
        for n = 1 to 6.
    """
    # sacreBLEU's own significance tests sum these up; it has no public name for them.
    return np.array(metric._extract_corpus_statistics(list(outputs), [list(references)]), dtype=np.int64)


def score_of_sums(metric: Metric, sums: np.ndarray) -> float:
    """Corpus score (0 to 100) of the sums of `sentence_statistics` over sentences."""
    return metric._compute_score_from_stats(sums.tolist()).score
