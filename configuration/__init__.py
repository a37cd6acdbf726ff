"""What a model is: configurations. Goes to the Hub with every checkpoint."""
