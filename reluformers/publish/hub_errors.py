"""Says in one line what went wrong between this machine and the Hub."""

from collections.abc import Iterator
from contextlib import contextmanager

from huggingface_hub import HfApi
from huggingface_hub.errors import (
    HfHubHTTPError,
    HTTPError,
    LocalTokenNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)

_AGAIN = "run the same command again, it goes on where it stopped"


@contextmanager
def hub_errors(api: HfApi, repo_id: str) -> Iterator[None]:
    """Turn errors of the Hub and of the network into one line.

    Args:
        api: the client, whose endpoint is named.
        repo_id: the repository that the block works on.

    Raises:
        ValueError: for an error of the Hub, of the network or of the token; all others propagate.
    """
    try:
        yield
    except ValueError:
        raise
    except Exception as error:
        message = describe_hub_error(error, api.endpoint, repo_id)
        if message is None:
            raise
        raise ValueError(message) from error


def describe_hub_error(error: BaseException, endpoint: str, repo_id: str) -> str | None:
    """One line for an error of the client.

    Args:
        error: any exception; one that was raised from an error of the network counts as that.
        endpoint: address of the Hub.
        repo_id: the repository in question.

    Returns:
        What happened and what to do; None if the Hub had no part in it.
    """
    if isinstance(error, LocalTokenNotFoundError):
        return "there is no token for the Hub; log in with `hf auth login`, or set HF_TOKEN"
    if type(error).__name__ == "OIDCError":  # of huggingface_hub from 1.19 on
        return f"the trusted publisher gives no token: {' '.join(str(error).split())}"
    if isinstance(error, OfflineModeIsEnabled):
        return "HF_HUB_OFFLINE is set; unset it to reach the Hub"
    if isinstance(error, HfHubHTTPError):
        return _describe_answer(error, endpoint, repo_id)
    if isinstance(error, HTTPError):
        reason = " ".join(str(error).split()) or type(error).__name__
        return f"{repo_id}: no connection to {endpoint} ({reason}); check the network, then {_AGAIN}"
    if isinstance(error, ValueError) and "README.md" in str(error):
        return f"{repo_id}: the Hub refuses the card: {' '.join(str(error).split())}"
    if error.__cause__ is not None:
        return describe_hub_error(error.__cause__, endpoint, repo_id)
    return None


def _describe_answer(error: HfHubHTTPError, endpoint: str, repo_id: str) -> str:
    status = error.response.status_code
    said = " ".join((error.server_message or "").split()) or f"status {status}"
    if status == 401 and not isinstance(error, RepositoryNotFoundError):
        return f"{endpoint} does not know this token; log in again with `hf auth login`, or correct HF_TOKEN"
    if status == 403:
        return f"{repo_id}: this token may not write there ({said}); take one with write access to it"
    if isinstance(error, RepositoryNotFoundError):
        return f"{repo_id}: is not on {endpoint}, or this token may not see it"
    if status in (409, 412):
        return f"{repo_id}: somebody else has changed it at the same time ({said}); {_AGAIN}"
    if status == 429 or status >= 500:
        return f"{repo_id}: {endpoint} cannot answer now ({said}); wait, then {_AGAIN}"
    return f"{repo_id}: {endpoint} refuses this ({said})"
