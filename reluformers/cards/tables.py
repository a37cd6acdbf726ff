"""The tables of a model card: how the model was trained, what it scored, what its attention is like."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reluformers.errors import UserError
from reluformers.plotting import SITE_NAMES

from .finished_run import FinishedRun, source_name

MISSING = "–"
# what two evaluations must share, so that their scores can stand side by side
_SAME = ("data", "split", "sentences", "images", "source_lang", "target_lang", "decoding")
# in a recipe, but no part of how a model is trained
_INCIDENTAL = {"disable_tqdm", "logging_steps", "use_cpu", "save_total_limit"}


@dataclass(frozen=True)
class ResultTable:
    """Scores of this model and perhaps of a baseline.

    Args:
        headers: what was measured.
        rows: name and cells of each model.
        scored: on what, in a sentence or two.
        remarks: signatures and how the baseline compares, a line each.
    """

    headers: list[str]
    rows: list[list[str]]
    scored: str
    remarks: list[str]


def scores(facts: FinishedRun) -> dict[str, Any] | None:
    """What the model scored: its evaluation, else what the training run measured at its end, else None."""
    if facts.evaluation is not None:
        return facts.evaluation
    key = "accuracy" if facts.is_vision else "bleu"
    for split in ("test", "validation"):
        if facts.results.get(f"{split}_{key}") is None:
            continue
        data = facts.section("data")
        measured = {name: facts.results.get(f"{split}_{name}") for name in ("loss", "accuracy", "top5_accuracy")}
        score = {"score": facts.results.get(f"{split}_bleu"), "signature": facts.results.get("bleu_signature")}
        return {
            "split": split,
            "data": data.get("path") or data.get(split),
            **{name: value for name, value in measured.items() if value is not None},
            **({} if facts.is_vision else {"bleu": score, "decoding": facts.section("decoding")}),
        }
    return None


def result_table(
    facts: FinishedRun,
    name: str,
    baseline: Mapping[str, Any] | None,
    baseline_recipe: Mapping[str, Any],
    data: str | None,
) -> ResultTable | None:
    """Put the scores into a table.

    Args:
        facts: of the model.
        name: of the model.
        baseline: evaluation of the softmax model; None for none.
        baseline_recipe: its recipe; empty if unknown.
        data: the data set that was scored, as the card names it.

    Returns:
        The table; None if nothing was measured.

    Raises:
        UserError: the two evaluations were not made in the same way.
    """
    measured = scores(facts)
    if measured is None:
        if baseline is not None:
            raise UserError("there is a baseline, but no evaluation of this model to put beside it; evaluate it first")
        return None
    measures = _measures(measured)
    rows = [[f"**{name}**", *measures.values()]]
    remarks = _signatures(measured)
    if baseline is not None:
        _check_comparable(measured, baseline)
        rows.append(["softmax baseline", *(_measures(baseline).get(header, MISSING) for header in measures)])
        remarks += _recipe_difference(facts.recipe, baseline_recipe)
    return ResultTable(list(measures), rows, _scored(measured, data), remarks)


def statistics_rows(report: Mapping[str, Any]) -> list[list[str]]:
    """The rows of the attention report: each site, and all of them if there are several."""
    numbers = {name: report[site]["overall"] for site, name in SITE_NAMES.items() if site in report}
    if len(numbers) > 1:
        numbers["all"] = report["overall"]
    return [
        [
            name,
            f"{row['zeros']:.1%}",
            f"{row['null_rate']:.1%}",
            MISSING if row["entropy"] is None else f"{row['entropy']:.2f}",
            f"{row['row_sum']:.2f}",
        ]
        for name, row in numbers.items()
    ]


def training_rows(facts: FinishedRun, data: str | None, hardware: str | None) -> list[tuple[str, str]]:
    """How the model was trained, as far as its folder knows.

    Args:
        facts: of the model.
        data: the data set, as the card names it.
        hardware: what it was trained on; None for what the run wrote down.

    Returns:
        Label and value of each row.
    """
    training = facts.section("training")
    rows = {
        "data": _data(facts, data),
        "shape": _shape(facts) if facts.recipe else None,
        "tokenizer": _tokenizer(facts),
        "batch": _batch(training),
        "length": _length(facts),
        "optimizer": _optimizer(training),
        "against overfitting": _regularization(facts) if facts.recipe else None,
        "precision": next((name for name in ("bf16", "fp16") if training.get(name)), None),
        "weights": _final_weights(training),
        "seed": training.get("seed"),
        "hardware": hardware or facts.results.get("device"),
        "time": _duration(facts.training_seconds),
        "software": _software(facts.results),
    }
    return [(label, str(value)) for label, value in rows.items() if value is not None]


def size_text(size: int | Sequence[int]) -> str:
    """Height and width of images or patches."""
    height, width = (size, size) if isinstance(size, int) else size
    return f"{height} × {width}"


def _measures(evaluation: Mapping[str, Any]) -> dict[str, str]:
    measures = {
        name: f"{evaluation[key]['score']:.2f}"
        for name, key in (("BLEU", "bleu"), ("chrF", "chrf"))
        if evaluation.get(key)
    }
    for name, key in (("accuracy", "accuracy"), ("top-5", "top5_accuracy")):
        if evaluation.get(key) is not None:
            measures[name] = f"{evaluation[key]:.2%}"
    if evaluation.get("loss") is not None:
        measures["loss"] = f"{evaluation['loss']:.3f}"
    overall = evaluation.get("attention", {}).get("overall")
    if overall:
        measures |= {"zeros": f"{overall['zeros']:.1%}", "null rows": f"{overall['null_rate']:.1%}"}
    return measures


def _signatures(evaluation: Mapping[str, Any]) -> list[str]:
    found = [
        f"{name} `{evaluation[key]['signature']}`"
        for name, key in (("BLEU", "bleu"), ("chrF", "chrf"))
        if (evaluation.get(key) or {}).get("signature")
    ]
    return [", ".join(found) + " (sacreBLEU)."] if found else []


def _scored(evaluation: Mapping[str, Any], data: str | None) -> str:
    rows = [f"{evaluation[key]:,} {key}" for key in ("sentences", "images") if key in evaluation]
    text = f"Scored on {f'{data}, ' if data else ''}split `{evaluation['split']}`{f' ({rows[0]})' if rows else ''}"
    decoding = evaluation.get("decoding") or {}
    if "num_beams" not in decoding:
        return f"{text}."
    beams = decoding["num_beams"]
    if beams == 1:
        return f"{text}, greedy search."
    penalty = {"hf": "len^α", "wu": "((5 + len)/6)^α"}.get(decoding.get("penalty"))
    length = f", length penalty {decoding['length_penalty']:g}{f' ({penalty})' if penalty else ''}"
    return f"{text}, beam {beams}{length if 'length_penalty' in decoding else ''}."


def _check_comparable(measured: Mapping[str, Any], baseline: Mapping[str, Any]) -> None:
    def value(evaluation: Mapping[str, Any], key: str) -> Any:
        if key == "data":
            return source_name(evaluation.get(key))
        if key == "decoding":  # the size of a batch changes no score
            return {name: it for name, it in (evaluation.get(key) or {}).items() if name != "max_tokens"}
        return evaluation.get(key)

    def signature(evaluation: Mapping[str, Any]) -> Any:
        return (evaluation.get("bleu") or {}).get("signature")

    pairs = {key: (value(measured, key), value(baseline, key)) for key in _SAME if key in measured}
    pairs["signature"] = (signature(measured), signature(baseline))
    for key, (ours, theirs) in pairs.items():
        if ours != theirs:
            raise UserError(
                f"the baseline was scored in another way: its {key} is {theirs!r}, but {ours!r} of this model; "
                "evaluate both with the same command"
            )


def _recipe_difference(recipe: Mapping[str, Any], baseline: Mapping[str, Any]) -> list[str]:
    if not recipe or not baseline:
        return []
    keys = {
        f"{section}.{key}"
        for section in recipe.keys() | baseline.keys()
        for key in (recipe.get(section) or {}).keys() | (baseline.get(section) or {}).keys()
        if key not in _INCIDENTAL and _value(recipe, section, key) != _value(baseline, section, key)
    }
    if not keys:
        return ["Both were trained by the same recipe."]
    return [f"The recipes of the two differ in {_listed(sorted(f'`{key}`' for key in keys))} alone."]


def _value(recipe: Mapping[str, Any], section: str, key: str) -> Any:
    value = (recipe.get(section) or {}).get(key)
    return source_name(value) if section == "data" and isinstance(value, str) else value


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _data(facts: FinishedRun, data: str | None) -> str | None:
    section = facts.section("data")
    if data is None or not section:
        return None
    train = section.get("train") or ("train" if section.get("path") else None)
    return f"{data}, `{source_name(train)}`" if source_name(train) not in (None, data) else data


def _shape(facts: FinishedRun) -> str:
    config = facts.config
    if facts.is_vision:
        return (
            f"{size_text(config.image_size)} pixels, patches of {size_text(config.patch_size)}, "
            f"width {config.hidden_size}, {config.num_hidden_layers} layers, {config.num_attention_heads} heads, "
            f"MLP {config.intermediate_size}, {config.norm_position}-norm, pooling {config.pooling}"
        )
    return (
        f"width {config.d_model}, {config.encoder_layers} + {config.decoder_layers} layers, "
        f"{config.encoder_attention_heads} heads, FFN {config.encoder_ffn_dim} ({config.activation_function}), "
        f"{config.norm_position}-norm"
    )


def _tokenizer(facts: FinishedRun) -> str | None:
    if facts.is_vision or not facts.recipe:
        return None
    config = facts.config
    kind = "" if facts.section("tokenizer").get("path") else "BPE, "
    if config.decoder_vocab_size is not None:
        return f"{kind}{config.vocab_size:,} source and {config.decoder_vocab_size:,} target tokens"
    return f"{kind}{config.vocab_size:,} tokens for both sides"


def _batch(training: Mapping[str, Any]) -> str | None:
    accumulated = training.get("gradient_accumulation_steps") or 1
    times = f", {accumulated} batches an update" if accumulated > 1 else ""
    if training.get("max_tokens"):
        return f"at most {training['max_tokens']:,} tokens, with padding{times}"
    size = training.get("per_device_train_batch_size")
    return None if size is None else f"{size}{times}"


def _length(facts: FinishedRun) -> str | None:
    epochs = next((entry["epoch"] for entry in reversed(facts.log) if "epoch" in entry), None)
    steps = facts.results.get("steps")
    parts = [] if steps is None else [f"{steps:,} updates"]
    if epochs is not None:
        parts.append(f"{epochs:.3g} epochs")
    return ", ".join(parts) or None


def _optimizer(training: Mapping[str, Any]) -> str | None:
    if "learning_rate" not in training:
        return None
    schedule = training.get("schedule") or training.get("lr_scheduler_type")
    meaning = "factor" if schedule == "noam" else "peak rate"
    parts = [str(training.get("optim", "adamw")), f"{meaning} {training['learning_rate']:g}"]
    parts += [str(schedule)] if schedule else []
    warmup = training.get("warmup_steps") or 0
    if warmup:  # below 1 it is a share of all updates
        parts.append(f"{warmup:g} warm-up updates" if warmup >= 1 else f"warm-up over {warmup:.0%} of the updates")
    for text, key in (
        ("β₂ {:g}", "adam_beta2"),
        ("weight decay {:g}", "weight_decay"),
        ("gradients clipped at {:g}", "max_grad_norm"),
    ):
        if training.get(key):
            parts.append(text.format(training[key]))
    return ", ".join(parts)


def _regularization(facts: FinishedRun) -> str | None:
    config = facts.config
    parts = [
        f"{name} {getattr(config, key):g}"
        for name, key in (
            ("dropout", "dropout"),
            ("attention dropout", "attention_dropout"),
            ("word dropout", "word_dropout"),
            ("drop path", "drop_path_rate"),
            ("label smoothing", "label_smoothing"),
        )
        if getattr(config, key, 0)
    ]
    augmentation = facts.section("augmentation")
    if augmentation.get("crop") == "pad":
        parts.append(f"crop with a border of {augmentation.get('padding')}")
    elif augmentation.get("crop") not in (None, "none"):
        parts.append(f"{augmentation['crop']} crop")
    parts += [name for name, key in (("flip", "flip"), ("RandAugment", "rand_augment")) if augmentation.get(key)]
    if augmentation.get("mixup"):
        parts.append(f"Mixup {augmentation['mixup']:g}")
    return ", ".join(parts) or None


def _final_weights(training: Mapping[str, Any]) -> str | None:
    if (training.get("average_last") or 0) > 1:
        return f"mean of the last {training['average_last']} checkpoints"
    if training.get("ema_decay"):
        return f"moving average, decay {training['ema_decay']:g}"
    if training.get("load_best_model_at_end"):
        return f"best checkpoint by {training.get('metric_for_best_model') or 'loss'}"
    return "those of the last update" if training else None


def _duration(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    if seconds < 100:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 100 * 60 else f"{seconds / 3600:.1f} hours"


def _software(results: Mapping[str, Any]) -> str | None:
    versions = [f"{name} {results[name]}" for name in ("torch", "transformers") if name in results]
    return ", ".join(versions) or None
