"""The template of model cards; each folder beside it holds the card of one model of docs/research/results.md."""
