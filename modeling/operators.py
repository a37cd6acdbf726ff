# Copyright 2026 the reluformers authors
# SPDX-License-Identifier: Apache-2.0
"""Where the operators of this copy of the code are registered with PyTorch."""

import hashlib

# Two checkpoints in one process may carry two versions of this code: each has operators of its own.
NAMESPACE = f"reluformers_{hashlib.sha256(__name__.encode()).hexdigest()[:16]}"
