"""`reluformers train` as a file, which `accelerate launch` and `torchrun` can take."""

import sys

from reluformers_cli import main

if __name__ == "__main__":
    main(["train", *sys.argv[1:]])
