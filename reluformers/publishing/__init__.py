"""Publishing a model: its card, its repository on the Hub and its demo Space."""
