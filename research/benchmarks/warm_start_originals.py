r"""Train the softmax models that warm starts begin with: stock classes of transformers and its stock trainers.

    python research/benchmarks/warm_start_originals.py translation --train train.jsonl.gz \
        --validation validation.jsonl.gz --output runs/marian
    python research/benchmarks/warm_start_originals.py images --path data/cifar10 --output runs/vit

The shape and the schedule of a translator are those of a recipe, by default marian_multi30k_en_de.yaml; a batch is a
number of pairs, as the stock trainer has no other.

Then, for each preset, once from the original and once from nothing, with as many updates in all:

    reluformers train scripts/recipes/warm_multi30k_en_de.yaml data.train=train.jsonl.gz \
        data.validation=validation.jsonl.gz model.start=runs/marian model.preset=reluformer --output_dir runs/warm
    reluformers train scripts/recipes/warm_cifar10.yaml data.path=data/cifar10 model.start=runs/vit \
        model.preset=relu-vit --output_dir runs/warm-vit
    reluformers train scripts/recipes/marian_multi30k_en_de.yaml data.train=train.jsonl.gz \
        data.validation=validation.jsonl.gz model.preset=reluformer --output_dir runs/nothing
    reluformers train scripts/recipes/vit_cifar10.yaml data.path=data/cifar10 model.preset=relu-vit \
        --output_dir runs/nothing-vit
    reluformers compare runs/warm … --curves curves.png
"""

import argparse
from pathlib import Path

import torch
from transformers import (
    DataCollatorForSeq2Seq,
    GenerationConfig,
    MarianConfig,
    MarianMTModel,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    Trainer,
    TrainingArguments,
    ViTConfig,
    ViTForImageClassification,
    ViTImageProcessorPil,
    set_seed,
)
from transformers.trainer_utils import get_last_checkpoint

from reluformers.images.augmentation import Augmentation, ImageCollator
from reluformers.images.loading import class_names, load_image_split
from reluformers.training.weight_average import WeightAverage
from reluformers.translation import TranslationRecipe
from reluformers.translation.loading import load_translation_split
from reluformers.translation.tokenization import save_tokenizers, tokenize_pairs, train_tokenizer

RECIPE = Path(__file__).parents[2] / "scripts/recipes/marian_multi30k_en_de.yaml"
SCHEDULE = {
    "adam_beta2": 0.98,
    "max_grad_norm": 1.0,
    "seed": 1,
    "logging_steps": 50,
    "save_strategy": "no",  # or see --save_steps
    "disable_tqdm": True,
    "use_cpu": not torch.cuda.is_available(),  # bf16 on processors is refused without it
}


class SavedAverage(WeightAverage):
    """A `WeightAverage` that goes on with a checkpoint of the stock trainer."""

    def on_save(self, args, state, control, **kwargs):
        self.save(Path(args.output_dir, f"checkpoint-{state.global_step}"))


def train_translation(options: argparse.Namespace) -> None:
    """A Marian model: PostNorm, swish, Marian's positions, one vocabulary."""
    recipe = TranslationRecipe.load(options.recipe)
    shape, training = recipe.model, recipe.training
    languages = {"source_lang": recipe.data.source_lang, "target_lang": recipe.data.target_lang}
    splits = {
        name: load_translation_split({name: getattr(options, name)}, name, **languages)
        for name in ("train", "validation")
    }
    texts = (batch[side] for side in ("source", "target") for batch in splits["train"].iter(batch_size=1000))
    positions = shape["max_position_embeddings"]
    tokenizer = train_tokenizer(texts, recipe.tokenizer.vocab_size, model_max_length=positions)
    rows = {name: tokenize_pairs(split, tokenizer, tokenizer) for name, split in splits.items()}
    same = ["d_model", "dropout", "attention_dropout", "max_position_embeddings", "scale_embedding"]
    for side in ("encoder", "decoder"):
        same += [f"{side}_{what}" for what in ("layers", "attention_heads", "ffn_dim")]
    config = MarianConfig(
        vocab_size=len(tokenizer), activation_function="swish", pad_token_id=0, bos_token_id=1, eos_token_id=2,
        decoder_start_token_id=0, forced_eos_token_id=None, **{name: shape[name] for name in same},
    )  # fmt: skip
    model = MarianMTModel(config)
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 0}
    model.generation_config = GenerationConfig(
        **ids, bad_words_ids=[[0]], num_beams=5, max_length=recipe.decoding.max_new_tokens + 1
    )
    saving = {"save_strategy": "steps", "save_steps": options.save_steps, "save_total_limit": 1}
    saving = saving if options.save_steps else {}
    arguments = Seq2SeqTrainingArguments(
        str(options.output), num_train_epochs=options.epochs or 20, max_steps=options.max_steps,
        learning_rate=training["learning_rate"], lr_scheduler_type=training["lr_scheduler_type"],
        warmup_steps=training["warmup_steps"], per_device_train_batch_size=options.rows, bf16=options.bf16,
        label_smoothing_factor=shape["label_smoothing"], train_sampling_strategy="group_by_length",
        eval_strategy="epoch", **(SCHEDULE | saving),
    )  # fmt: skip
    trainer = Seq2SeqTrainer(
        model,
        arguments,
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
        train_dataset=rows["train"].select_columns(["input_ids", "labels"]),
        eval_dataset=rows["validation"].select_columns(["input_ids", "labels"]),
    )
    checkpoint = get_last_checkpoint(options.output) if options.save_steps and options.output.is_dir() else None
    average = training.get("ema_decay") and SavedAverage(model, training["ema_decay"])
    if average:
        trainer.add_callback(average)
        if checkpoint:
            average.load(checkpoint)
    trainer.train(resume_from_checkpoint=checkpoint)
    if average:
        average.replace_weights()
    model.save_pretrained(options.output)
    save_tokenizers(options.output, tokenizer)


def train_images(options: argparse.Namespace) -> None:
    """A ViT: class token, learned positions, softmax."""
    source = {"path": str(options.path)}
    train = load_image_split(source, "train[5000:]")
    names = class_names(train)
    config = ViTConfig(
        image_size=32, patch_size=4, hidden_size=128, num_hidden_layers=6, num_attention_heads=4,
        intermediate_size=256, id2label=dict(enumerate(names)), label2id={name: i for i, name in enumerate(names)},
    )  # fmt: skip
    processor = ViTImageProcessorPil(size={"height": 32, "width": 32})
    arguments = TrainingArguments(
        str(options.output), num_train_epochs=options.epochs or 10, max_steps=options.max_steps, learning_rate=1e-3,
        lr_scheduler_type="cosine", warmup_steps=500, per_device_train_batch_size=64, weight_decay=0.1,
        bf16=options.bf16, remove_unused_columns=False, **(SCHEDULE | {"adam_beta2": 0.999}),
    )  # fmt: skip
    trainer = Trainer(
        ViTForImageClassification(config),
        arguments,
        data_collator=ImageCollator(processor, Augmentation(crop="pad", padding=4, flip=True)),
        train_dataset=train,
    )
    trainer.train()
    trainer.model.save_pretrained(options.output)
    processor.save_pretrained(options.output)


def main() -> None:
    """Read the options and train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=("translation", "images"))
    parser.add_argument("--train", help="JSON lines")
    parser.add_argument("--validation", help="JSON lines")
    parser.add_argument("--recipe", type=Path, default=RECIPE, help="of translation")
    parser.add_argument("--rows", type=int, default=64, help="pairs of a batch")
    parser.add_argument("--path", type=Path, help="folder of CIFAR-10, or its Hub id")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--epochs", type=int, help="20 of translation and 10 of images if missing")
    parser.add_argument("--max_steps", type=int, default=-1)
    parser.add_argument("--save_steps", type=int, help="updates between checkpoints of translation, to go on from")
    parser.add_argument("--bf16", action="store_true", help="autocast")
    options = parser.parse_args()
    set_seed(SCHEDULE["seed"])  # of the first weights, which are made before the trainer
    {"translation": train_translation, "images": train_images}[options.task](options)


if __name__ == "__main__":
    main()
