"""`python -m reluformers COMMAND …`."""

from reluformers_cli import main

if __name__ == "__main__":
    main()
