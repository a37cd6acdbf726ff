# Copyright 2026 the reluformers authors
# SPDX-License-Identifier: Apache-2.0
"""Where compiled attention for processors comes from: an installed package, or a repository that the user names."""

from os import environ
from types import ModuleType

KERNELS_VARIABLE = "RELUFORMERS_KERNELS"  # repository of kernels, "owner/name"; nothing is looked for without it
NATIVE_INTERFACE = 1  # counts up with `INTERFACE` of native/__init__.py, and is the version of the repository


def _find_native() -> ModuleType | None:
    """The package of native/, or None where there is none for this version of the code.

    Raises:
        ImportError: a repository is named, but the package `kernels` is not installed.
    """
    name = environ.get(KERNELS_VARIABLE)
    try:
        if name:
            from kernels import get_kernel
        else:
            import reluformers_native as native
    except ImportError as error:
        if name:
            raise ImportError(f"{KERNELS_VARIABLE} is {name!r}, which needs kernels: pip install kernels") from error
        return None
    if name:  # whoever sets the variable trusts what it names
        native = get_kernel(name, version=NATIVE_INTERFACE, backend="cpu", trust_remote_code=True).native
    return native if native.INTERFACE == NATIVE_INTERFACE else None


native = _find_native()
