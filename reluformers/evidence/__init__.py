"""Evidence: the papers' tables as recipes, runs over seeds, statistics and verdicts."""
