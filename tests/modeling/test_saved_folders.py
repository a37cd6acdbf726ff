"""What `save_pretrained` writes computes what the model did, or opening it reports what it lacks."""

import copy
import random
from collections.abc import Callable
from functools import partial

import peft
import pytest
import torch
from torch import nn
from transformers import PreTrainedModel

from builders.models import TINY, build_model, draw_pairs
from reluformers.families import FAMILIES

FEW_LAYERS = {"encoder_layers": 1, "decoder_layers": 1}
SIZE = TINY["vocab_size"]
WIDTH = TINY["d_model"]


def moved(weight: torch.Tensor) -> nn.Parameter:
    """Another weight of its own."""
    return nn.Parameter(weight.detach() + torch.randn_like(weight) / 4)


def untie_head(model):
    model.lm_head.weight = moved(model.lm_head.weight)


def untie_decoder(model):
    model.model.decoder.embed_tokens.weight = moved(model.model.decoder.embed_tokens.weight)


def tie_head(model):
    model.lm_head.weight = model.get_decoder().embed_tokens.weight


def share_memory(model):
    encoder = model.get_encoder().embed_tokens
    decoder = model.get_decoder().embed_tokens
    if len(encoder.weight) == len(decoder.weight):
        decoder.weight = nn.Parameter(encoder.weight.data)


def replace_head(model):
    old = model.lm_head.weight
    head = nn.Linear(WIDTH, len(old), dtype=old.dtype)  # with a bias
    model.set_output_embeddings(head)


def replace_embeddings(model):
    old = model.get_input_embeddings().weight
    model.set_input_embeddings(nn.Embedding(len(old), WIDTH, dtype=old.dtype))


def grow(model):
    model.resize_token_embeddings(model.config.vocab_size + 3)


def cut_ties_by_name(model):
    model.config.tie_word_embeddings = False


def tie_all_again(model):
    if model.config.target_vocab_size == model.config.vocab_size:
        model.config.tying = "all"
        model.tie_weights()


def to_bf16(model):
    model.to(torch.bfloat16)


def adapt(model, **options):
    peft.get_peft_model(model, peft.LoraConfig(r=2, init_lora_weights=False, **options)).merge_and_unload()


STEPS = [
    untie_head,
    untie_decoder,
    tie_head,
    share_memory,
    replace_head,
    replace_embeddings,
    grow,
    cut_ties_by_name,
    tie_all_again,
    to_bf16,
    partial(adapt, target_modules=["lm_head", "q_proj"]),
    partial(adapt, target_modules=["embed_tokens"]),
    partial(adapt, target_modules=["q_proj"], modules_to_save=["lm_head"]),
]


def logits(model) -> torch.Tensor:
    batch = draw_pairs()
    batch["labels"] = batch["labels"].clamp_max(29)
    with torch.no_grad():
        return model.eval()(**batch).logits


def save_and_open(model: PreTrainedModel, folder) -> PreTrainedModel:
    model.save_pretrained(folder)
    opened, report = type(model).from_pretrained(folder, output_loading_info=True)
    assert not any(report.values()), report
    return opened.eval()


def walk(model: PreTrainedModel, steps: list[Callable], folder) -> None:
    """Save after all steps, compare, and once more what was opened."""
    torch.manual_seed(3)
    for step in steps:
        step(model)
    for name in ("first", "second"):
        before = logits(model)
        model = save_and_open(model, folder / name)
        torch.testing.assert_close(logits(model), before, rtol=0, atol=0)


FORMS = [
    *({"tying": tying} for tying in ("all", "decoder", "none")),
    *({"tying": tying, "decoder_vocab_size": 30} for tying in ("decoder", "none")),
    {"tying": "all", "decoder_vocab_size": SIZE},
    {"tying": "all", "tie_word_embeddings": False},
    {"tying": "decoder", "tie_word_embeddings": False, "output_bias": True},
]
CASES = [(form, norm) for form in FORMS for norm in ("none", "fix_norm", "layer_norm")]


@pytest.fixture
def without_code(monkeypatch):
    """Leaves the files of code out, which take longer to write than all else."""
    for config_class in FAMILIES:
        monkeypatch.setattr(config_class, "payload_writer", None)


@pytest.mark.usefixtures("without_code")
@pytest.mark.parametrize(
    ("number", "count"),
    [(number, 2) if number % 2 else pytest.param(number, 30, marks=pytest.mark.slow) for number in range(len(CASES))],
)
def test_a_folder_computes_what_the_model_did_or_opening_reports_what_it_lacks(number, count, tmp_path):
    draw = random.Random(number)
    walks = [[tie_head, grow], [STEPS[number % len(STEPS)]]]
    walks += [draw.choices(STEPS, k=draw.randint(1, 4)) for _ in range(count - 2)]
    form, norm = CASES[number]
    model = build_model("rela-g", **form, embedding_norm=norm, position_embedding_type="learned", **FEW_LAYERS)
    for name, steps in enumerate(walks):
        try:
            walk(copy.deepcopy(model), steps, tmp_path / str(name))
        except Exception as error:
            # its bias is not in the configuration, and transformers names it
            if replace_head not in steps or "{'lm_head.bias'}" not in str(error):
                error.add_note(f"{form}, {norm}, after {steps}")
                raise


def test_parts_of_a_model_are_saved_alone(tmp_path):
    model = build_model("softmax", tying="none")
    for part in (model.model, model.get_encoder(), model.get_decoder()):
        opened = save_and_open(part, tmp_path / type(part).__name__)
        for name, weight in part.state_dict().items():
            assert torch.equal(opened.state_dict()[name], weight), name


def test_a_model_that_is_not_replaced_keeps_its_ties_and_its_random_numbers(tmp_path):
    model = build_model("softmax")
    before = torch.get_rng_state()
    model.save_pretrained(tmp_path)
    assert torch.equal(torch.get_rng_state(), before)
    opened = save_and_open(model, tmp_path)
    assert opened.lm_head.weight is opened.get_input_embeddings().weight


def test_weights_that_layers_share_by_hand_are_saved(tmp_path):
    model = build_model("softmax")
    first, second = model.get_encoder().layers
    second.mlp.fc1.weight = first.mlp.fc1.weight
    before = logits(model)
    torch.testing.assert_close(logits(save_and_open(model, tmp_path)), before)
