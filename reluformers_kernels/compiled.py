# Copyright 2026 the reluformers authors
# SPDX-License-Identifier: Apache-2.0
"""Where compiled code for processors comes from: an installed package, or a repository that the user names."""

from os import environ
from types import ModuleType

# The environment variable RELUFORMERS_KERNELS names a repository of kernels, "owner/name"; without it nothing is
# downloaded.
KERNELS_VARIABLE = "RELUFORMERS_KERNELS"
# `NATIVE_INTERFACE` must equal `INTERFACE` of native/__init__.py, and is the version of a kernel repository.
NATIVE_INTERFACE = 6


def _find_native() -> ModuleType | None:
    """The package of native/, or None where there is none for this version of the code.

    Raises:
        ValueError: a repository is named, but `kernels` is not installed, or its code is of another version.
    """
    name = environ.get(KERNELS_VARIABLE)
    if not name:
        try:
            import reluformers_native as native
        except ImportError:
            return None
        return native if native.INTERFACE == NATIVE_INTERFACE else None
    try:
        from kernels import get_kernel
    except ImportError as error:
        raise ValueError(f"{KERNELS_VARIABLE} is {name!r}, which needs kernels: pip install kernels") from error
    # Code of the repository is run, because whoever sets the environment variable trusts what it names.
    native = get_kernel(name, version=NATIVE_INTERFACE, backend="cpu", trust_remote_code=True).native
    if native.INTERFACE != NATIVE_INTERFACE:
        version = f"whose compiled code is of version {native.INTERFACE}, but must be of {NATIVE_INTERFACE}"
        raise ValueError(f"{KERNELS_VARIABLE} is {name!r}, {version}")
    return native


native = _find_native()
