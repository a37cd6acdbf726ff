"""Publishing: the code of a saved model, its card, checks, and releases on the Hub."""
