"""What every training run has, whatever its task: recipe, arguments, batches, trainer, checkpoints, averaging."""
