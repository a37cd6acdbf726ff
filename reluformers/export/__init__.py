"""Saved models for other runtimes: ONNX folders, and pages that need no server."""

RECORD = "export.json"  # of an exported folder; named here, as the package onnx is an extra
