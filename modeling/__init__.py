# Copyright 2026 the reluformers authors
# SPDX-License-Identifier: Apache-2.0
"""What a model computes. Goes to the Hub with every checkpoint."""
