"""The door for faults: every command line runs in `run_main`, which prints a fault as one line."""

import codecs
import errno
import importlib.util
import json
import os
import re
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import requires

FAULTS = (ValueError, ArithmeticError, OSError, RuntimeError)  # of data, settings and the machine
EXIT_ERROR = 2
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143
EXIT_UNREAD = 141  # as a shell says it of a program that SIGPIPE ended

# Arrow and safetensors report a full disk in words, PyTorch by what it could not write, each by exceptions of its own
_DISK_FULL = ("No space left on device", "PytorchStreamWriter failed", ". unexpected pos ")
_OVER_QUOTA = "Disk quota exceeded"
# packages that are imported under another name than they are installed by
_DISTRIBUTIONS = {"PIL": "pillow", "sklearn": "scikit-learn", "yaml": "pyyaml", "comet": "unbabel-comet"}


class DivergenceError(ValueError):
    """Training has left the finite numbers, from where nothing leads back."""


class _Terminated(KeyboardInterrupt):
    """The process was asked to end; libraries let it pass as they do Ctrl-C."""


def _escape(error: UnicodeError) -> tuple[str, int]:
    """What the encoding lacks, as JSON has it, so that a line of JSON stays one."""
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


codecs.register_error("reluformers.escape", _escape)


def run_main(main: Callable[[], None], traceback: bool = False) -> None:
    """Run a command line and print a fault as one line on stderr.

    Characters that the encoding of stdout lacks are printed as `\\u2026`.

    Args:
        main: Function without arguments; its return value is ignored.
        traceback: Let every error propagate.

    Raises:
        SystemExit: Code 2 after one of `FAULTS`, a package that is not installed, or a full disk; 130 after Ctrl-C,
            143 after SIGTERM; 141, without a line, where the reader of the output has gone, as `head` does.
    """
    if hasattr(sys.stdout, "reconfigure"):  # not of a notebook, nor where it is closed
        sys.stdout.reconfigure(errors="reluformers.escape")
    try:
        with _stopping_on_sigterm():
            try:
                main()
            except SystemExit:
                _flush_output()
                raise
            _flush_output()
    except _Terminated:
        sys.stderr.write("error: terminated\n")
        sys.exit(EXIT_TERMINATED)
    except KeyboardInterrupt:
        sys.stderr.write("error: interrupted\n")
        sys.exit(EXIT_INTERRUPTED)
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _nobody_reads():
            sys.exit(EXIT_UNREAD)
        # one that was raised by hand says what to install; the import system's own has a name
        says_package = type(error) is ImportError and error.name is None
        hub = sys.modules.get("huggingface_hub.errors")  # whose HTTP client has errors of its own, as for no network
        is_said = isinstance(error, (*FAULTS, *((hub.HTTPError,) if hub else ())))
        missing = _missing_package(error)
        if (not is_said and not says_package and not missing and not is_disk_full(error)) or traceback:
            raise
        message = missing or describe_error(error)
        # a name may hold what a terminal obeys
        shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in message)
        sys.stderr.write(f"error: {shown}\n")
        sys.exit(EXIT_ERROR)


def describe_error(error: BaseException, named: str | os.PathLike | None = None) -> str:
    """Say in one line what an exception means.

    Args:
        error: Any exception.
        named: The file that the message around it names already.

    Returns:
        Its message without line breaks; a full disk and errors about a file are put into words.
    """
    path = getattr(error, "filename", None)
    if is_disk_full(error):
        place = f" while writing {path}" if path else ""
        what = "the disk quota is used up" if _is_over_quota(error) else "no space left on the disk"
        return f"{what}{place}; free some space, then run the same command again"
    if isinstance(error, OSError) and error.strerror and path:
        return error.strerror if named is not None and os.fspath(named) == path else f"{path}: {error.strerror}"
    message = str(error)
    if "Original Traceback" in message:  # a DataLoader puts that of its worker before the message
        message = message.rstrip().rpartition("\n")[2].partition(": ")[2]
    return " ".join(message.split()) or type(error).__name__


def _missing_package(error: Exception) -> str | None:
    """What to install, if an import found no such package; a module that a package lacks is a fault of ours."""
    name = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if not name or importlib.util.find_spec(name):
        return None
    package = _DISTRIBUTIONS.get(name, name)
    extra = re.search(rf'^{package}\b.*\bextra == "(\w+)"', "\n".join(requires("reluformers") or ()), re.MULTILINE)
    installed = f"install reluformers with its extra {extra[1]!r}, or" if extra else "run"
    return f"this needs the package {package}: {installed} `pip install {package}`"


def is_disk_full(error: BaseException) -> bool:
    """Whether an exception says that nothing more can be written, for want of space or quota."""
    is_full = getattr(error, "errno", None) == errno.ENOSPC or any(words in str(error) for words in _DISK_FULL)
    return is_full or _is_over_quota(error)


@contextmanager
def _stopping_on_sigterm() -> Iterator[None]:
    """Let SIGTERM end the block by an exception, so that unfinished files are removed."""
    before = signal.getsignal(signal.SIGTERM)
    if threading.current_thread() is not threading.main_thread() or before != signal.SIG_DFL:
        yield
        return
    process = os.getpid()

    def stop(number: int, frame: object) -> None:
        if os.getpid() != process:  # a forked worker ends as it would have without us
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        signal.signal(number, signal.SIG_IGN)  # a second one must not stop the tidying up
        raise _Terminated

    signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _flush_output() -> None:
    """Write what is left for stdout here, as the interpreter says nothing that can be caught."""
    if sys.stdout is not None:  # as where it is closed
        sys.stdout.flush()


def _nobody_reads() -> bool:
    """Whether stdout is a pipe whose reader has gone; what is left for it is then dropped."""
    output = 1  # of the process; `sys.stdout` may be something of its caller's
    poll = select.poll()
    poll.register(output, 0)
    if not poll.poll(0):  # errors alone are reported to who asks for nothing
        return False
    # the interpreter flushes once more when it ends
    os.dup2(os.open(os.devnull, os.O_WRONLY), output)
    return True


def _is_over_quota(error: BaseException) -> bool:
    return getattr(error, "errno", None) == errno.EDQUOT or _OVER_QUOTA in str(error)
