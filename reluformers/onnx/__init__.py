"""Models as ONNX graphs: export, merging, number formats and sessions; nothing of a task."""

FOLDER = "onnx"  # of the graphs in an exported folder
# number format → what the names of its files end in, as transformers.js has them
SUFFIXES = {"fp32": "", "fp16": "_fp16", "int8": "_quantized", "q4": "_q4"}
