"""Evaluation: scores of saved models, what their attention does, and the curves and records of both."""
