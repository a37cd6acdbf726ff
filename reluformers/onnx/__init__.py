"""Models as ONNX graphs: export, merging, number formats and sessions; nothing of a task."""
