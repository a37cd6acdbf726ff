"""Models as ONNX graphs: export, merging, number formats and sessions; nothing of a task."""

FOLDER = "onnx"  # The graphs of an exported folder lie in it.
# File names end in these words for each number format, as in transformers.js.
SUFFIXES = {"fp32": "", "fp16": "_fp16", "int8": "_quantized", "q4": "_q4"}
