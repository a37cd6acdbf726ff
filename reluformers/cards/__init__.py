"""Model cards: what a finished run knows of its model, in the words and the metadata of the Hub."""
