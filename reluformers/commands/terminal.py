"""What commands show on the terminal beside their own lines."""

import sys

import transformers


def shows_progress() -> bool:
    """Whether somebody looks at the terminal."""
    return sys.stderr.isatty()


def hide_unwatched_progress() -> None:
    """Draw no progress bars of other libraries into a file or a pipe."""
    import datasets  # takes a while, and not every command reads data

    if not shows_progress():
        datasets.disable_progress_bars()
        transformers.logging.disable_progress_bar()


def silence_transformers() -> None:
    """For commands that open models: what matters of transformers' reports comes back as one line of their own."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def silence_libraries() -> None:
    """For commands that open models and read data."""
    silence_transformers()
    hide_unwatched_progress()
