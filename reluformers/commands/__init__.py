"""The commands of `reluformers`, a file each."""
