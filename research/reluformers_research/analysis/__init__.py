"""What the attention of trained models does: figures of the papers, reports, filtering of parallel text."""
