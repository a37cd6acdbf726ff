"""Opens a saved model as somebody would who has transformers and no reluformers, and uses it once.

Run by its path in a process of its own (`answer_in_clean_process`): `python -I child.py TASK FOLDER`, a text, an
image or tensors on stdin, JSON on stdout. It imports nothing of this library and makes sure that nobody else
can.
"""

import io
import json
import os
import sys

# With None here, Python takes the packages for missing, however they are installed.
sys.modules["reluformers"] = sys.modules["reluformers_kernels"] = None

import torch  # noqa: E402
import transformers  # noqa: E402
from safetensors.torch import load  # noqa: E402
from transformers import AutoConfig, AutoTokenizer, logging, pipeline  # noqa: E402

# Imported from its module: some supported versions ask for torchvision behind the short name.
from transformers.models.auto.image_processing_auto import AutoImageProcessor  # noqa: E402


def answer_of(task: str, folder: str, data: bytes) -> tuple[object, dict]:
    """What the pipeline of a task makes of a text in UTF-8, or of a file with an image."""
    pipe = pipeline(task, model=folder, trust_remote_code=True)
    if task == "translation":
        return pipe.model, pipe(data.decode(), num_beams=5)[0]
    from PIL import Image

    return pipe.model, pipe(Image.open(io.BytesIO(data)), top_k=1)[0]


def compare(folder: str, data: bytes) -> tuple[object, dict]:
    """How far the model's logits are from `logits` of the tensors, and what it answers.

    The tensors are its inputs, those logits and, of a translation model, `texts`: a JSON list in UTF-8.
    """
    inputs = load(data)
    expected = inputs.pop("logits")
    texts = inputs.pop("texts", None)
    config = AutoConfig.from_pretrained(folder, trust_remote_code=True)
    (head,) = config.auto_map.keys() - {"AutoConfig", "AutoModel"}
    processor_class = AutoTokenizer if "input_ids" in inputs else AutoImageProcessor
    processor = processor_class.from_pretrained(folder, trust_remote_code=True)
    model = getattr(transformers, head).from_pretrained(folder, trust_remote_code=True, dtype=torch.float32)
    with torch.no_grad():
        difference = (model(**inputs).logits - expected).abs().max().item()
        if texts is None:
            answers = classes_of(model, inputs["pixel_values"])
        else:
            answers = [translation_of(model, processor, text) for text in json.loads(bytes(texts.tolist()))]
    for task in getattr(config, "custom_pipelines", None) or {}:
        pipeline(task, model=folder, trust_remote_code=True)("a", max_new_tokens=4)
    # The code of the folder knows whether `generate` of this transformers fits it.
    find_fault = getattr(sys.modules[type(model).__module__], "find_generation_fault", lambda model: None)
    return model, {"difference": difference, "answers": answers, "generation_fault": find_fault(model)}


def translation_of(model: torch.nn.Module, tokenizer: object, text: str) -> dict:
    """Tokens of a text, of its greedy translation, and a summary of the logits behind the latter."""
    limit = model.config.max_position_embeddings  # An example of a run may be longer.
    cut = {"truncation": True, "max_length": limit}
    source = tokenizer(text, return_tensors="pt", return_token_type_ids=False, **cut)
    tokens = model.generate(**source, num_beams=1, do_sample=False, max_length=None, max_new_tokens=12)
    logits = model(**source, decoder_input_ids=tokens, use_cache=False).logits
    numbers = {"text": text, "input_ids": source["input_ids"][0].tolist(), "tokens": tokens[0].tolist()}
    return numbers | {"logits": summary_of(logits)}


def classes_of(model: torch.nn.Module, pixels: torch.Tensor) -> list[dict]:
    """Best class and a summary of the logits of four images: two, and their negatives."""
    logits = model(torch.cat([pixels, -pixels])).logits
    return [{"class": int(row.argmax()), "logits": summary_of(row)} for row in logits]


def summary_of(logits: torch.Tensor) -> dict[str, float]:
    logits = logits.double()
    numbers = {"mean": logits.mean(), "std": logits.std(), "max": logits.max()}
    return {name: float(f"{number:.5g}") for name, number in numbers.items()}


def main() -> None:
    task, folder = sys.argv[1:]
    # The model's code may print. Its output goes to stderr, so that stdout has the answer alone.
    output = os.dup(1)
    os.dup2(2, 1)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    data = sys.stdin.buffer.read()
    model, answer = compare(folder, data) if task == "compare" else answer_of(task, folder, data)
    answer["model_class"] = f"{type(model).__module__}.{type(model).__name__}"
    with os.fdopen(output, "wb") as stdout:
        stdout.write(json.dumps(answer).encode())


if __name__ == "__main__":
    main()
