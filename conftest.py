"""Every test starts from the same seeds, on one thread and without a network."""

import os

# commands that run a folder's code would start this process anew; children of it have other numbers
os.environ["RELUFORMERS_STARTED_ANEW"] = str(os.getpid())
# read when transformers, datasets and evaluate are imported, so set before anything imports them
os.environ.update(
    HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1", TOKENIZERS_PARALLELISM="false"
)

import gc
import ipaddress
import logging
import re
import socket

import pytest
import torch
from transformers import set_seed

torch.set_num_threads(1)
# also fills new memory with NaN, which shows whoever reads it before writing
torch.use_deterministic_algorithms(True, warn_only=True)


def pytest_collection_finish():
    """Leave what the imports made out of later collections of garbage, which every end of a training asks for."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def fixed_seeds():
    set_seed(0)


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef):
    """Seed what several tests share too, which is made before `fixed_seeds` and would follow from earlier tests."""
    if fixturedef.scope != "function":
        set_seed(0)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Training, validation and test pairs of the toy language."""
    from builders.translation_runs import write_toy_files

    return write_toy_files(tmp_path_factory.mktemp("data"))


# names of our own API, which the tests call as users of supported versions do: 5.17 knows no other
KNOWN_DEPRECATIONS = re.compile(r"gradient_checkpointing")


class _Deprecations(logging.Handler):
    """Collects what transformers says of calls that will stop to work."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.messages = []

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if re.search(r"deprecated|will be removed", message) and not KNOWN_DEPRECATIONS.search(message):
            self.messages.append(message)


@pytest.fixture(autouse=True)
def no_deprecated_calls():
    """What transformers logs as deprecated is an error here; what it warns of is one by pyproject.toml."""
    handler = _Deprecations()
    logger = logging.getLogger("transformers")
    logger.addHandler(handler)
    yield
    logger.removeHandler(handler)
    assert not handler.messages


@pytest.fixture(scope="session", autouse=True)
def nothing_waits_for_the_disk():
    """What tests write need not outlast a loss of power, and each file would cost milliseconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def nothing_is_short():
    """Sequences of tests are short: what computes the long ones must not leave them to the reference."""
    from reluformers.modeling import attention
    from reluformers_kernels import computation

    with pytest.MonkeyPatch.context() as patch:
        for module in (attention, computation):
            patch.setattr(module, "SHORT_KEYS", 0)
        yield


def _is_local(address) -> bool:
    if not isinstance(address, tuple):  # a Unix socket's path
        return True
    host = address[0]
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    """Connections may go to this machine alone; several processes of one test talk over loopback."""

    def guarded(connect):
        def connect_locally(self, address):
            if not _is_local(address):
                raise ConnectionRefusedError(f"tests have no network, but one connects to {address!r}")
            return connect(self, address)

        return connect_locally

    for name in ("connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, name, guarded(getattr(socket.socket, name)))


@pytest.fixture
def threads():
    """Function that sets their number until the test ends."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)
