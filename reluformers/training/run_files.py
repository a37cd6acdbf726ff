"""Names of what a training run leaves in its folder."""

RECIPE_FILE = "recipe.yaml"
LOG_FILE = "log_history.json"
RESULTS_FILE = "results.json"
CURVES_FILE = "curves.png"
CONFUSION_FILE = "confusion_matrix.png"
UNFINISHED_MODEL = "unfinished"  # The finished model is written into this folder first.
