"""Commands that research adds to `reluformers`, a file each."""

# in the order in which they are used
COMMANDS = {
    "analyse": "measure the attention of saved models, and draw it",
    "table": "run the rows of a paper's table and judge its claims",
}
