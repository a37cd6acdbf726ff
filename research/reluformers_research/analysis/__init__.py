"""What the attention of trained models does: figures of the papers and reports."""
