"""Saved models for other runtimes: ONNX folders, and pages that need no server."""
