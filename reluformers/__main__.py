"""`python -m reluformers COMMAND …`."""

from .cli import main

main()
