"""What the attention of a trained model does: statistics, reports, word alignments, filtering of parallel text."""
