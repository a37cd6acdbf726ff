"""The door for faults: every command line runs in `run_main`, which prints a fault as one line."""

import os
import sys
import zlib
from collections.abc import Callable

# Messages of these say all. For others the name of the class says what kind of fault it is.
_SPEAKING = (ValueError, ArithmeticError, OSError, EOFError, zlib.error, RuntimeError, ImportError)
EXIT_ERROR = 2
EXIT_INTERRUPTED = 130
EXIT_UNREAD = 141  # A shell gives this code for a program that SIGPIPE ended.


class DivergenceError(ValueError):
    """Training has left the finite numbers, from where nothing leads back."""


def run_main(main: Callable[[], None], traceback: bool = False) -> None:
    """Run a command line and print a fault as one line on stderr.

    Characters that the encoding of stdout lacks are printed as `\\u2026`.

    Args:
        main: Function without arguments; its return value is ignored.
        traceback: Let every error propagate.

    Raises:
        SystemExit: Code 2 after an error; 130 after Ctrl-C; 141, without a line, after a broken pipe: the reader of
            the output has gone, as `head` does.
    """
    if hasattr(sys.stdout, "reconfigure"):  # A notebook's stdout, or a closed one, cannot be reconfigured.
        is_chosen = sys.stdout.isatty() or "PYTHONIOENCODING" in os.environ
        # Files and pipes get UTF-8, which is what commands read, whatever the locale says.
        sys.stdout.reconfigure(encoding=None if is_chosen else "utf-8", errors="backslashreplace")
    try:
        try:
            main()
        finally:
            if sys.stdout is not None:  # A closed stdout is None.
                sys.stdout.flush()  # Flush here: errors of the flush at exit cannot be caught.
    except KeyboardInterrupt:
        sys.stderr.write("error: interrupted\n")
        sys.exit(EXIT_INTERRUPTED)
    except BrokenPipeError:
        # The interpreter flushes once more when it ends; what is left must go nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(EXIT_UNREAD)
    except Exception as error:
        if traceback:
            raise
        # A name may hold characters that a terminal obeys.
        shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in describe_error(error))
        sys.stderr.write(f"error: {shown}\n")
        sys.exit(EXIT_ERROR)


def describe_error(error: BaseException) -> str:
    """Say in one line what an exception means: its message, behind the name of its class where that says more."""
    path = getattr(error, "filename", None)
    if isinstance(error, OSError) and error.strerror and path:
        return f"{path}: {error.strerror}"
    message = str(error)
    if "Original Traceback" in message:  # A DataLoader puts the traceback of its worker before the message.
        message = message.rstrip().rpartition("\n")[2].partition(": ")[2]
    line = " ".join(message.split())
    kind = type(error).__name__
    if not line:
        return kind
    return line if isinstance(error, _SPEAKING) else f"{kind}: {line}"
