"""What a model computes. Goes to the Hub with every checkpoint."""
