"""Toy images and a tiny recipe for the tests of image training."""

from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from datasets import ClassLabel, Dataset, Features, Image
from PIL import Image as pillow
from transformers import AutoModelForImageClassification

from reluformers.images.processing import build_image_processor
from reluformers.images.recipe import ImageRecipe
from reluformers.images.trainer import ImageTrainer

CLASSES = ["dark", "red", "green", "blue", "cyan", "pink", "sand", "pale"]
SIZES = {
    "image_size": 8,
    "patch_size": 4,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}


def write_images(folder: Path, name: str, rows: int, classes: list[str] = CLASSES) -> str:
    """A parquet file of noisy pictures whose channels are bright or not, by the bits of their class."""
    generator = np.random.default_rng(len(name))
    labels = [row % len(classes) for row in range(rows)]
    images = []
    for label in labels:
        base = [64 + 128 * (label >> channel & 1) for channel in range(3)]
        pixels = np.clip(base + generator.normal(0, 30, (8, 8, 3)), 0, 255).astype(np.uint8)
        buffer = BytesIO()
        pillow.fromarray(pixels).save(buffer, "PNG")
        images.append({"bytes": buffer.getvalue(), "path": f"{name}-{len(images)}.png"})
    features = Features({"image": Image(decode=False), "label": ClassLabel(names=classes)})
    Dataset.from_dict({"image": images, "label": labels}, features=features).to_parquet(folder / f"{name}.parquet")
    return str(folder / f"{name}.parquet")


def make_image_recipe(
    files: dict[str, str], *, model: dict | None = None, augmentation: dict | None = None, **training
) -> ImageRecipe:
    return ImageRecipe.from_dict(
        {
            "model": {"preset": "relu-vit", **SIZES, **(model or {})},
            "data": files,
            "augmentation": augmentation or {},
            "training": {
                "per_device_train_batch_size": 8,
                "per_device_eval_batch_size": 7,
                "max_steps": 6,
                "learning_rate": 5e-3,
                "logging_steps": 1,
                "save_strategy": "no",
                "disable_tqdm": True,
                "seed": 3,
                **training,
            },
        }
    )


def make_image_trainer(splits, folder, *, model=None, augmentation=None, train=None, **training) -> ImageTrainer:
    recipe = make_image_recipe({}, model=model, augmentation=augmentation, **training)
    torch.manual_seed(0)
    network = AutoModelForImageClassification.from_config(recipe.model_config(num_labels=len(CLASSES)))
    return ImageTrainer(
        network,
        recipe.training_arguments(folder),
        train_dataset=splits["train"] if train is None else train,
        eval_dataset=splits["validation"],
        processing_class=build_image_processor(network.config),
        augmentation=recipe.augmentation,
    )
