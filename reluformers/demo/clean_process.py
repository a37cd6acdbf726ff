"""Opens a saved model as somebody would who has transformers and no reluformers, and translates one line.

Run by its path in a process of its own (`pipeline.translate_in_clean_process`): `python -I clean_process.py FOLDER`,
the text on stdin, JSON on stdout. It imports nothing of this library and makes sure that nobody else can.
"""

import importlib.util
import json
import sys

# what Python itself takes for "there is no such package", however it is installed
sys.modules["reluformers"] = None

from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, logging  # noqa: E402


def main() -> None:
    folder, text = sys.argv[1], sys.stdin.buffer.read().decode()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder, trust_remote_code=True)
    tokens = model.generate(**tokenizer(text, return_tensors="pt"), num_beams=5)
    answer = {
        "translation": tokenizer.decode(tokens[0], skip_special_tokens=True),
        "model_class": f"{type(model).__module__}.{type(model).__name__}",
        "has_library": importlib.util.find_spec("reluformers") is not None,
    }
    sys.stdout.buffer.write(json.dumps(answer).encode())


if __name__ == "__main__":
    main()
