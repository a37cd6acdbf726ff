"""Training of translation models, from a recipe to a folder that opens anywhere."""

import dataclasses
import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from transformers import (
    AutoConfig,
    AutoModelForSeq2SeqLM,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    set_seed,
)

from reluformers.configuration.configuration_seq2seq import Seq2SeqTransformerConfig
from reluformers.conversion.start import spread_batches, start_model
from reluformers.data.batching import PairCollator
from reluformers.data.sources import name_in_errors
from reluformers.evaluation.alignments import measure_layers
from reluformers.files import write_text
from reluformers.training.run import Run, identify_run, open_run, save_run, train_model
from reluformers.training.transfer import add_transfer

from .loading import load_splits
from .metrics import choose_examples
from .recipe import TranslationRecipe, TranslationTrainingArguments
from .tokenization import Tokenizers, check_tokenizers_fit, load_tokenizers, save_tokenizers, train_tokenizer
from .tokenized_rows import PairStream, clean, describe_tokens, pack_documents, token_lengths, tokenize_pairs
from .trainer import TranslationTrainer

logger = logging.getLogger(__name__)

HELD_OUT_FILE = "validation.jsonl"
# The tokenizers of a stream are trained on so many rows.
TOKENIZER_ROWS = 1_000_000
_CALIBRATION_BATCH = 32  # In rows.
_TOKENIZER_OPTIONS = ("vocab_size", "min_frequency", "byte_fallback", "max_digits")
_ATTENTION_FIELDS = ("attention", *(f"{site}_attention" for site in Seq2SeqTransformerConfig.sites))


def train_translation(
    recipe: TranslationRecipe,
    output_dir: str | Path,
    *,
    resume: str | Path | None = None,
    report: Callable[[str], None] = logger.info,
) -> dict[str, Any]:
    """Train a translation model, evaluate it and save everything that belongs to it.

    Under `accelerate launch` or `torchrun` every process calls this; the first one writes and reports.

    Args:
        recipe: what to train on what.
        output_dir: folder for checkpoints and, at the end, the model, tokenizer, generation settings, `recipe.yaml`,
            `log_history.json`, `results.json` and `curves.png`.
        resume: None for a fresh run, `"last"`, `"auto"` or a checkpoint's path: see `checkpoint_to_resume`.
        report: takes lines for the user.

    Returns:
        The content of `results.json`: `validation_bleu`, `validation_loss`, the same of the test set if there is one,
        `bleu_signature`, `examples` (what `choose_examples` takes of the validation set), `alignment_shares` (see
        `measure_layers`, by layer), `parameters`, `steps`, the `Circumstances` and, unless it was resumed,
        `training_seconds`.

    Raises:
        ValueError: the recipe, the data, the folder or the checkpoint is not usable; the message says why.
    """
    with open_run(recipe, output_dir, resume, report) as run:
        with run.args.main_process_first(local=False):
            # The first process of a fresh run makes the tokenizers that all others read.
            is_made = run.checkpoint is not None or not run.is_first
            folder = run.checkpoint or run.output_dir
            prepared = prepare_data(recipe, folder, reuse_tokenizers=is_made, report=run.report)
        record = identify_run(run, describe(prepared))
        set_seed(run.args.seed)
        model = build_model(recipe, prepared, run.checkpoint, run.report)
        trainer = build_trainer(recipe, run.args, prepared, model)
        seconds = train_model(run, trainer, record)
        if recipe.data.held_out is not None and run.is_first:
            _write_held_out(run, prepared.evaluation["validation"])
        return save_run(run, trainer, _score(run, trainer, prepared), seconds)


@dataclass
class PreparedData:
    """What a run trains and evaluates on.

    Args:
        train: columns `input_ids`, `labels`, cleaned; or a stream of such rows.
        evaluation: splits `"validation"` and perhaps `"test"`, whole, with the texts `source` and `target` too.
        tokenizers: of the source and of the target side, which may be one.
    """

    train: Dataset | PairStream
    evaluation: dict[str, Dataset]
    tokenizers: Tokenizers


def describe(prepared: PreparedData) -> dict[str, dict[str, Any]]:
    """Checksums by which rows of training and validation are told from others."""
    is_stream = isinstance(prepared.train, PairStream)
    train = prepared.train.describe() if is_stream else describe_tokens(prepared.train)
    return {"train": train, "validation": describe_tokens(prepared.evaluation["validation"])}


def prepare_data(
    recipe: TranslationRecipe, folder: Path, *, reuse_tokenizers: bool, report: Callable[[str], None] = logger.info
) -> PreparedData:
    """Load, tokenise and clean the sentence pairs of a recipe.

    Args:
        recipe: of the run.
        folder: where the tokenizers are saved, the run's or a checkpoint's.
        reuse_tokenizers: load them from there instead, as a resumed run and its further processes do.
        report: takes one line about what was dropped.

    Raises:
        ValueError: the data cannot be read, or nothing is left of them.
    """
    data = recipe.data
    longest = recipe.model_config().max_position_embeddings
    splits = load_splits(data)
    if reuse_tokenizers:
        tokenizers = load_tokenizers(folder)
    else:
        tokenizers = _make_tokenizers(recipe, splits["train"], longest)
        save_tokenizers(folder, *tokenizers)
    if data.document_tokens is not None:
        splits = {name: pack_documents(split, *tokenizers, data.document_tokens) for name, split in splits.items()}
    limits = {"max_tokens": min(longest, data.max_length or longest), "max_length_ratio": data.max_length_ratio}
    train = splits.pop("train")
    if isinstance(train, PairStream):
        budget = recipe.training.get("max_tokens", TranslationTrainingArguments.max_tokens)
        if limits["max_tokens"] > budget:
            raise ValueError(f"data.max_length is above training.max_tokens: set it to {budget} or less for a stream")
        train = dataclasses.replace(train, tokenizers=tokenizers, limits=limits)
        report(f"training set: a stream of {train.rows.num_shards:,} shards")
    else:
        train, cleaning_report = clean(tokenize_pairs(train, *tokenizers, num_proc=data.num_proc), **limits)
        report(f"training set: {cleaning_report}")
        # Without the indirection that filtering leaves, rows are read 5 times faster.
        train = train.select_columns(["input_ids", "labels"]).flatten_indices()
    evaluation = {name: tokenize_pairs(split, *tokenizers, max_length=longest) for name, split in splits.items()}
    return PreparedData(train, evaluation, tokenizers)


def _make_tokenizers(recipe: TranslationRecipe, train: Dataset | PairStream, model_max_length: int) -> Tokenizers:
    """Load the tokenizers of a recipe or of the model that it starts from, or train them on the training set."""
    section = recipe.tokenizer
    if (path := section.path or recipe.start) is not None:
        return load_tokenizers(path)
    options = {name: getattr(section, name) for name in _TOKENIZER_OPTIONS} | {"model_max_length": model_max_length}

    def texts(*columns: str) -> Iterator[list[str]]:
        for rows in train.texts(TOKENIZER_ROWS) if isinstance(train, PairStream) else [train]:
            for batch in rows.select_columns(list(columns)).iter(batch_size=1000):
                yield from (batch[column] for column in columns)

    if section.shared:
        return (train_tokenizer(texts("source", "target"), **options),) * 2
    source = train_tokenizer(texts("source"), normalization=section.source_normalization, **options)
    return source, train_tokenizer(texts("target"), **options)


def build_model(
    recipe: TranslationRecipe,
    prepared: PreparedData,
    checkpoint: Path | None = None,
    report: Callable[[str], None] = logger.info,
) -> PreTrainedModel:
    """Build a model for the recipe and its tokenizers, with generation defaults of the decoding section.

    The scale of cosine attention starts from the measured length of the training set unless the recipe gives one
    (QKNorm, section 3: L is the 97.5th percentile). It stands in config.json, and a resumed run takes it from there.

    Args:
        recipe: of the run.
        prepared: its data.
        checkpoint: where the run goes on, if it does.
        report: takes a line on how near an exchanged attention is to the one before.

    Raises:
        ValueError: the model and the tokenizers do not fit.
    """
    source, target = prepared.tokenizers
    if recipe.start is None:
        ids = [f"{name}_token_id" for name in ("pad", "bos", "eos", "unk")]
        fields = {name: getattr(source, name) for name in ids if getattr(source, name) is not None}
        fields.setdefault("decoder_start_token_id", fields.get("bos_token_id", source.pad_token_id))
        fields["vocab_size"] = len(source)
        if target is not source:
            if recipe.model_config().tying == "all":
                raise ValueError("model.tying is 'all', but there are two tokenizers: set model.tying=decoder")
            fields["decoder_vocab_size"] = len(target)
        config = recipe.model_config(**fields, **_measured_scales(recipe, prepared.train, checkpoint))
        model = AutoModelForSeq2SeqLM.from_config(config)
        names = [f"{name}_token_id" for name in ("pad", "bos", "eos", "decoder_start")]
        model.generation_config = GenerationConfig(**{name: getattr(config, name) for name in names})
    else:
        # The weights of a checkpoint come later, so a resumed run fits nothing.
        count = recipe.calibration_rows if checkpoint is None else 0
        collate = PairCollator(source.pad_token_id)
        batches = spread_batches(prepared.train, count, collate, _CALIBRATION_BATCH) if count else []
        model = start_model(**recipe.start_options, batches=batches, report=report)
    check_tokenizers_fit(prepared.tokenizers, model.config)
    max_length = _default_max_length(recipe, model.config)
    # Update, so that tokens that the starting model must never generate stay forbidden.
    model.generation_config.update(max_length=max_length, **recipe.decoding.generation_options())
    return model


def _default_max_length(recipe: TranslationRecipe, config: PreTrainedConfig) -> int:
    """The longest output by default, with the start token: a document that was learned in one piece is written so.

    A saved `max_new_tokens` would overrule the `max_length` that somebody asks for.
    """
    longest = max(recipe.decoding.max_new_tokens, recipe.data.document_tokens or 0)
    return 1 + min(longest, config.max_position_embeddings)


def _measured_scales(
    recipe: TranslationRecipe, train: Dataset | PairStream, checkpoint: Path | None
) -> dict[str, dict[str, Any]]:
    """Attention fields with the measured `scale_length`, for those of cosine score whose scale is not given."""
    config = recipe.model_config()
    earlier = None if checkpoint is None else AutoConfig.from_pretrained(checkpoint, trust_remote_code=False)
    changed = {}
    for name in _ATTENTION_FIELDS:
        attention = getattr(config, name)
        given = recipe.model.get(name)
        gives_scale = isinstance(given, dict) and not {"scale", "scale_length"}.isdisjoint(given)
        if attention is None or gives_scale or attention.score != "cosine" or attention.scale is not None:
            continue
        percentile = recipe.data.scale_length_percentile
        length = scale_length(train, percentile) if earlier is None else getattr(earlier, name).scale_length
        changed[name] = dataclasses.replace(attention, scale_length=length).to_dict()
    return changed


def scale_length(train: Dataset | PairStream, percentile: float) -> int:
    """L of QKNorm eq. 3: a percentile of the lengths of both sides, of a stream of its first block; at least 2."""
    train = train.sample() if isinstance(train, PairStream) else train
    lengths = np.concatenate([token_lengths(train, column) for column in ("input_ids", "labels")])
    return max(2, round(float(np.percentile(lengths, percentile))))


def build_trainer(
    recipe: TranslationRecipe, args: TranslationTrainingArguments, prepared: PreparedData, model: PreTrainedModel
) -> TranslationTrainer:
    """A trainer that decodes as the recipe says, with the beam of evaluations in training."""
    decoding = dataclasses.replace(recipe.decoding, num_beams=args.generation_num_beams or 1)
    trainer = TranslationTrainer(
        model,
        args,
        train_dataset=prepared.train,
        eval_dataset=prepared.evaluation["validation"],
        processing_class=prepared.tokenizers[0],
        target_tokenizer=prepared.tokenizers[1],
        target_lang=recipe.data.target_lang,
        decoding=decoding.translation_options(),
    )
    for name, dataset in prepared.evaluation.items():
        # This fails before training if rows cannot be dealt evenly to the processes.
        with name_in_errors(f"data.{name}"):
            trainer.get_eval_dataloader(dataset)
    add_transfer(trainer, recipe)
    return trainer


def _write_held_out(run: Run, rows: Dataset) -> None:
    """Write the pairs that were held out, on which other models can be scored."""
    data = run.recipe.data
    path = run.output_dir / HELD_OUT_FILE
    pairs = zip(rows["source"], rows["target"], strict=True)
    lines = [{"translation": {data.source_lang: source, data.target_lang: target}} for source, target in pairs]
    write_text(path, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    run.report(f"{path}: {len(lines):,} pairs of the training set, held out")


def _score(run: Run, trainer: TranslationTrainer, prepared: PreparedData) -> dict[str, Any]:
    """BLEU, as the recipe decodes, and loss of every evaluation split; examples; the layer of alignments."""
    shares, layer = measure_layers(trainer.model, prepared.tokenizers, prepared.evaluation["validation"])
    trainer.model.config.alignment_layer = layer  # It must be set before the model is saved.
    scores = {"alignment_shares": [round(share, 4) for share in shares]} if shares else {}
    for name, dataset in prepared.evaluation.items():
        run.report(f"{name}: translating {len(dataset):,} rows")
        metrics = trainer.evaluate(dataset, metric_key_prefix=name, **run.recipe.decoding.translation_options())
        scores |= {key: metrics[key] for key in (f"{name}_bleu", f"{name}_loss")}
        run.report(f"{name}: BLEU {scores[f'{name}_bleu']:.2f}, loss {scores[f'{name}_loss']:.3f}")
        if name == "validation":
            sides = (dataset["source"][:], dataset["target"][:])
            scores["examples"] = choose_examples(*sides, trainer.last_translations)
    return {**scores, "bleu_signature": trainer.bleu.get_signature().format()}
