"""Errors that a user can mend, and the frame in which every command line runs."""

import errno
import logging
import sys
from collections.abc import Callable

logger = logging.getLogger(__name__)

EXIT_ERROR = 2
EXIT_INTERRUPTED = 130


class UserError(ValueError):
    """A fault in the user's data or settings; the message is one line that says what, where and what to do."""


def run_main(main: Callable[[], None]) -> None:
    """Run a command line and turn errors of its user into one line on stderr.

    The traceback of such an error is logged at level DEBUG. Errors that are none of the user's propagate.

    Args:
        main: Function without arguments; its return value is ignored.

    Raises:
        SystemExit: Code 2 after a `ValueError` (`UserError` is one), an `OSError` or a full disk, 130 after Ctrl-C.
    """
    try:
        main()
    except KeyboardInterrupt:
        sys.stderr.write("error: interrupted\n")
        sys.exit(EXIT_INTERRUPTED)
    except Exception as error:
        if not isinstance(error, ValueError | OSError) and not _is_disk_full(error):
            raise
        logger.debug("the error in full", exc_info=True)
        sys.stderr.write(f"error: {describe_error(error)}\n")
        sys.exit(EXIT_ERROR)


def describe_error(error: BaseException) -> str:
    """Say in one line what an exception means.

    Args:
        error: Any exception.

    Returns:
        Its message without line breaks; a full disk and errors about a file are put into words.
    """
    path = getattr(error, "filename", None)
    if _is_disk_full(error):
        place = f" while writing {path}" if path else ""
        return f"no space left on the disk{place}; free some space, then run the same command again"
    if isinstance(error, OSError) and error.strerror and path:
        return f"{path}: {error.strerror}"
    return " ".join(str(error).split()) or type(error).__name__


def _is_disk_full(error: BaseException) -> bool:
    # Arrow and safetensors report a full disk in words, with exceptions of their own
    return getattr(error, "errno", None) == errno.ENOSPC or "No space left on device" in str(error)
