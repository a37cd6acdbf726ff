"""From files or the Hub to batches: loading, packing, tokens, cleaning, batches."""
