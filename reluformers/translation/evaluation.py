"""Scores saved translation models: BLEU, chrF, chrF++ and TER with sacreBLEU's signatures."""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal

from sacrebleu.metrics import BLEU, CHRF, TER
from torch import Tensor
from torch.utils.data import DataLoader

from reluformers.data.batching import PairCollator
from reluformers.evaluation.results import Score, ScoredData, checksum
from reluformers.evaluation.scorer import Scorer, ScoringOptions
from reluformers.files import atomic_write
from reluformers.saved_models import DTYPES

from .decoding import Search, load_translation_model, saved_languages, translate
from .loading import load_translation_split
from .metrics import CorpusMetric, bleu_metric
from .recipe import TranslationRecipe
from .rows import PairColumns
from .tokenized_rows import pack_documents, token_batches, tokenize_pairs

logger = logging.getLogger(__name__)

# TER's time grows with the third power of a text's words. With this bound on the sum of these powers, it takes up to
# three minutes where outputs are nothing but loops, and seconds elsewhere.
MOST_TER_WORK = 2 * 10**8
_SEARCH = tuple(item.name for item in fields(Search))


@dataclass(kw_only=True)
class TranslationScoring(ScoringOptions, Search, PairColumns):
    """How a translation model is scored, beside what all models need.

    Args:
        source_lang: language to translate from, such as en; without it, the language that the model's folder names.
        target_lang: language to translate to, such as de; without it, the language that the model's folder names.
        document_tokens: join sentences of a document until they have this many tokens (ReLUFormer, B).
        max_tokens: most source tokens in a batch, with padding.
        tokenize: sacreBLEU's tokenizer; none for text in tokens; without it, the tokenizer of the target language.
        predictions: text file for the translations, one per line.
        dtype: data type to compute in, int8 only on CPUs; without it, the saved model's.
    """

    document_tokens: int | None = None
    max_tokens: int = 4096
    tokenize: Literal[tuple(sorted(BLEU.TOKENIZERS))] | None = None
    predictions: str | None = None
    dtype: Literal[DTYPES] | None = None

    written: ClassVar[tuple[str, ...]] = ("output", "predictions")

    def __post_init__(self):
        super().__post_init__()
        known = (None, None) if self.source_lang and self.target_lang else saved_languages(self.model)
        self.source_lang = self.source_lang or known[0]
        self.target_lang = self.target_lang or known[1]
        self.bleu = bleu_metric(self.target_lang, self.tokenize)


class TranslationScorer(Scorer):
    """Translates a split and compares with its references; see `Scorer`."""

    task = TranslationRecipe.task
    options_class = TranslationScoring
    options: TranslationScoring

    def load(self) -> ScoredData:
        """Pairs first, as they are the cheaper ones to be wrong."""
        options = self.options
        self.pairs = load_translation_split(options.source, options.split, options)
        self.model, self.tokenizers = load_translation_model(
            options.model, trust_remote_code=options.trust_remote_code, dtype=options.dtype
        )
        packs = options.document_tokens is not None
        if packs:
            self.pairs = pack_documents(self.pairs, *self.tokenizers, options.document_tokens)
        rows = zip(self.pairs["source"], self.pairs["target"], strict=True)
        return ScoredData(
            split=options.split,
            source=options.data,
            config=options.data_config,
            rows=len(self.pairs),
            unit="documents" if packs else "sentences",
            checksum=checksum((source.encode(), target.encode()) for source, target in rows),
            source_lang=options.source_lang,
            target_lang=options.target_lang,
        )

    @property
    def decoding(self) -> dict[str, Any]:
        """Options of `translate`."""
        return {name: getattr(self.options, name) for name in (*_SEARCH, "max_tokens")}

    def answer(self) -> list[str]:
        """Translations, in the order of the rows."""
        return translate(self.model, self.tokenizers, self.pairs["source"], progress=None, **self.decoding)

    def count(self, answers: list[str]) -> dict[str, Any]:
        """BLEU with the precisions and lengths behind it, chrF, chrF++ and TER."""
        references = list(self.pairs["target"])
        metrics = {"bleu": self.options.bleu, "chrf": CHRF(), "chrf++": CHRF(word_order=2), "ter": TER()}
        words = ((len(one.split()), len(other.split())) for one, other in zip(answers, references, strict=True))
        if sum(min(counts) ** 3 for counts in words) > MOST_TER_WORK:
            logger.warning("TER is left out: on texts as long as these, its search for shifts takes hours")
            del metrics["ter"]
        scores = {}
        for name, metric in metrics.items():
            result = CorpusMetric(metric).compute(predictions=answers, references=references)
            scores[name] = Score(result.pop("score"), result.pop("signature"), result)
        precision = {} if self.options.dtype is None else {"dtype": self.options.dtype}
        return {"scores": scores, "decoding": self.decoding | precision}

    def attention_batches(self) -> Iterable[Mapping[str, Tensor]]:
        """The references as they are, by teacher forcing; longer sides are cut, with a warning."""
        max_length = getattr(self.model.config, "max_position_embeddings", None)  # T5 has no such field.
        pairs = tokenize_pairs(self.pairs, *self.tokenizers, max_length=max_length)
        pairs = pairs.select_columns(["input_ids", "labels"])
        batches = token_batches(pairs, max_tokens=self.options.max_tokens, shuffle=False)
        return DataLoader(pairs, batch_sampler=batches, collate_fn=PairCollator(self.tokenizers[0].pad_token_id))

    def write_files(self, answers: list[str], evaluation) -> None:
        """Write the translations, a line each."""
        if self.options.predictions:
            with atomic_write(self.options.predictions) as path:
                lines = (" ".join(text.splitlines()) + "\n" for text in answers)
                path.write_text("".join(lines), encoding="utf-8")
