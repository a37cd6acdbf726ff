"""Commands that research adds to `reluformers`, a file each."""

# in the order in which they are used
COMMANDS = {
    "analyse": "measure what the attention of saved models does, and draw it",
    "table": "run the rows of a paper's table and judge its claims",
    "align": "align the words of parallel text",
    "filter": "rank parallel text, or keep the best of it",
}
