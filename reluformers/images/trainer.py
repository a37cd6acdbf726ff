"""Trainer for image classification: a seed for each batch, accuracy, weight decay as in big_vision."""

from collections.abc import Mapping
from typing import Any

import torch
from accelerate.utils import gather_object
from datasets import Dataset as Rows
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, default_convert
from transformers import BaseImageProcessor

from reluformers.data.batching import PerProcessDataLoader, SeededBatch, SeededBatchSampler
from reluformers.training.recipe import TaskTrainingArguments
from reluformers.training.trainer import TaskTrainer

from .augmentation import Augmentation, ImageCollator
from .scoring import classify

# big_vision calls the weights of these modules kernels, and decays no others.
_KERNELS = (nn.Linear, nn.Conv2d)


class ImageTrainer(TaskTrainer):
    """`Trainer` for images with one label each.

    What it does differently: images are decoded and changed at random by the data loader's workers, from a seed for
    each batch; batches are dealt to the processes here, not by accelerate; weight decay is for the weights of linear
    maps and convolutions alone; `evaluate` gives loss and accuracy and gathers no logits.

    Args:
        model: image classifier whose loss is a mean over images.
        args: training arguments.
        train_dataset: rows of `load_image_split`.
        eval_dataset: such rows, or a dict of such data sets.
        processing_class: the model's image processor.
        augmentation: of the training images; None for none.
        options: of `Trainer`, such as `callbacks`.
    """

    def __init__(
        self,
        model: nn.Module,
        args: TaskTrainingArguments,
        *,
        processing_class: BaseImageProcessor,
        augmentation: Augmentation | None = None,
        **options: Any,
    ):
        self.training_collator = ImageCollator(processing_class, augmentation, num_labels=model.config.num_labels)
        options.setdefault("data_collator", ImageCollator(processing_class))
        super().__init__(model, args, processing_class=processing_class, count=count_images, **options)

    def get_train_dataloader(self) -> DataLoader:
        """Batches of this process, in a new order and with new random changes each epoch."""
        sampler = SeededBatchSampler(
            len(self.train_dataset),
            self._train_batch_size,  # `auto_find_batch_size` may have lowered it.
            drop_last=self.args.dataloader_drop_last,
            **self.sampler_options(),
        )
        batches = SeededImages(self.train_dataset, self.training_collator)
        return PerProcessDataLoader(
            batches, batch_sampler=sampler, collate_fn=default_convert, **self.loader_options()
        )

    def get_eval_dataloader(self, eval_dataset: Rows | None = None) -> DataLoader:
        """Batches of this process, which takes every n-th image of n processes, or all under FSDP."""
        dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        share = range(self.args.process_index, len(dataset), self.args.world_size)
        if self.accelerator.is_fsdp2:  # Processes of FSDP must make the same steps.
            share = range(len(dataset))
        return DataLoader(
            dataset.select(share),
            self.args.eval_batch_size,
            collate_fn=self.data_collator,
            **self.loader_options(),
        )

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        """Weights of linear maps and convolutions; none of biases, norms, positions and learned tokens."""
        return [f"{name}.weight" for name, module in model.named_modules() if isinstance(module, _KERNELS)]

    def measure(self, dataloader: DataLoader) -> tuple[dict[str, float], int]:
        """`loss` (nats), `accuracy` and, of more than five classes, `top5_accuracy` (0 to 1)."""
        gather = list if self.accelerator.is_fsdp2 else gather_object
        self.classified = classify(self.model, dataloader, gather)
        return self.classified.scores(), len(self.classified.labels)


class SeededImages(Dataset):
    """Batches of rows of `load_image_split`, made at random from the seed of each.

    A resumed run, or one with more workers, gets the same.
    """

    def __init__(self, dataset: Rows, collator: ImageCollator):
        self.dataset = dataset
        self.collator = collator

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitems__(self, batch: SeededBatch) -> dict[str, Any]:
        """Make a batch."""
        with torch.random.fork_rng(devices=[]):
            # `torch.manual_seed` would seed the generators of GPUs too.
            torch.default_generator.manual_seed(batch.seed)
            return self.collator(self.dataset.__getitems__(batch.rows))


def count_images(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`images` of a batch."""
    images = inputs["pixel_values"]
    # The count is added up beside the statistics of the model, so it lies on their device.
    return {"images": images.new_full((), len(images), dtype=torch.float32)}
