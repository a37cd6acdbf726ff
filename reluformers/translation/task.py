"""The task of translation, for commands, cards and the Hub."""

from transformers import AutoModelForSeq2SeqLM

from reluformers.papers import PAPERS
from reluformers.training.task import Task

from . import card
from .evaluation import TranslationScorer
from .recipe import TranslationRecipe
from .run import train_translation
from .tokenization import example_tokens

TASK = Task(
    name=TranslationRecipe.task,
    title="Translation",
    auto_class=AutoModelForSeq2SeqLM,
    recipe_class=TranslationRecipe,
    train=train_translation,
    scorer=TranslationScorer,
    main_metric="bleu",
    example_inputs=example_tokens,
    example="Two dogs are playing in the snow.",
    architecture=PAPERS["vaswani2017attention"],
    speeds=("source_tokens_per_second", "target_tokens_per_second"),
    speed_unit="tokens/s",
    card=card,
)
