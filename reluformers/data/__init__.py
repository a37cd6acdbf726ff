"""Data: files and the Hub become rows, batches and streams."""
