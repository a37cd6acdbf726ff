"""Names of what a training run leaves in its folder, beside its model and `RESULTS_FILE`."""

RECIPE_FILE = "recipe.yaml"
LOG_FILE = "log_history.json"
CURVES_FILE = "curves.png"
CONFUSION_FILE = "confusion_matrix.png"
UNFINISHED_MODEL = "unfinished"  # The finished model is written into this folder first.
