"""Average the weights of the last checkpoints of a run.

Example:
    python scripts/average_checkpoints.py runs/reluformer --last 5 --output runs/reluformer/averaged
"""

import argparse

from reluformers.errors import run_main
from reluformers.training.averaging import average_checkpoints, last_checkpoints


def main() -> None:
    parser = argparse.ArgumentParser(description="Average the weights of the last checkpoints of a run.")
    parser.add_argument("run_folder", help="folder that holds checkpoint-<step> folders")
    parser.add_argument("--last", type=int, default=5, help="number of checkpoints (default: %(default)s)")
    parser.add_argument("--output", required=True, help="folder to write")
    parser.add_argument("--overwrite", action="store_true", help="replace the output folder if it exists")
    options = parser.parse_args()
    folders = last_checkpoints(options.run_folder, options.last)
    average_checkpoints(folders, options.output, overwrite=options.overwrite)
    print(f"averaged {', '.join(folder.name for folder in folders)} into {options.output}")


if __name__ == "__main__":
    run_main(main)
