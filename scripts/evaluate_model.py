"""`reluformers evaluate` as a file, which `accelerate launch` and `torchrun` can take.

It is not called evaluate.py: the folder of a script comes first where Python looks for the package `evaluate`.
"""

import sys

from reluformers.cli import main

if __name__ == "__main__":
    main(["evaluate", *sys.argv[1:]])
