"""Cases that put our models, and the stock ones beside them, through transformers' own common tests.

Run by test_transformers_common.py in a process of its own, with the tests of transformers on the path.
"""

import unittest

from tests.generation.test_utils import GenerationTesterMixin
from tests.test_modeling_common import ModelTesterMixin, ids_tensor
from transformers import MarianConfig, MarianModel, MarianMTModel, ViTConfig, ViTForImageClassification, ViTModel
from transformers.models.auto import modeling_auto

from reluformers.families import FAMILIES

# the mixin looks up by name there which models have a head, and which labels that takes
NAMES = {
    "AutoModel": modeling_auto.MODEL_MAPPING_NAMES,
    "AutoModelForSeq2SeqLM": modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    "AutoModelForImageClassification": modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES,
}
for config_class, models in FAMILIES.items():
    for auto_class, model in models.items():
        NAMES[auto_class.__name__][config_class.model_type] = model.__name__

BATCH, SOURCE, TARGET, IMAGE = 5, 7, 7, 8
LAYERS = {"layers": 2, "attention_heads": 4, "ffn_dim": 4}
SEQ2SEQ = {f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in LAYERS.items()}
SEQ2SEQ |= {"vocab_size": 99, "d_model": 16, "max_position_embeddings": 50, "dropout": 0.1, "attention_dropout": 0.1}
SEQ2SEQ |= {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 3}
VISION = {"image_size": IMAGE, "patch_size": 2, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
VISION |= {"intermediate_size": 37, "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}


class Tester:
    """What the mixin asks of a model's tester."""

    is_training = True

    def __init__(self, parent, config_class, sizes, draw):
        self.parent, self.config_class, self.sizes, self.draw = parent, config_class, sizes, draw
        self.batch_size, self.seq_length, self.num_labels = BATCH, SOURCE, 3
        self.encoder_seq_length, self.decoder_seq_length, self.key_length = SOURCE, TARGET, SOURCE
        self.num_hidden_layers = 2
        self.hidden_size = sizes.get("d_model", sizes.get("hidden_size"))
        self.num_attention_heads = 4
        self.num_masks = 1
        if "image_size" in sizes:
            self.seq_length = self.encoder_seq_length = self.key_length = (IMAGE // 2) ** 2 + 1

    def get_config(self):
        return self.config_class(**self.sizes)

    def prepare_config_and_inputs_for_common(self):
        return self.get_config(), self.draw()


def draw_pairs() -> dict:
    source, target = (ids_tensor([BATCH, length], 99).clamp(4) for length in (SOURCE, TARGET))
    masks = {"attention_mask": source.ne(1), "decoder_attention_mask": target.ne(1)}
    return {"input_ids": source, "decoder_input_ids": target, **masks}


def draw_images() -> dict:
    return {"pixel_values": ids_tensor([BATCH, 3, IMAGE, IMAGE], 255).float() / 255}


def case_of(name: str, config_class: type, models: tuple[type, ...], sizes: dict, *, generates: bool) -> type:
    """A test case for a configuration and its models."""
    draw = draw_pairs if generates else draw_images
    bases = (ModelTesterMixin, *([GenerationTesterMixin] if generates else []), unittest.TestCase)

    def set_up(self):
        self.model_tester = Tester(self, config_class, sizes, draw)

    fields = {
        "setUp": set_up,
        "all_model_classes": models,
        "all_generative_model_classes": models[1:] if generates else (),
        "is_encoder_decoder": generates,
        "has_attentions": True,
        "test_resize_embeddings": generates,
        "test_missing_keys": False,
        "__module__": __name__,
    }
    return type(name, bases, fields)


StockTranslation = case_of("StockTranslation", MarianConfig, (MarianModel, MarianMTModel), SEQ2SEQ, generates=True)
StockImages = case_of("StockImages", ViTConfig, (ViTModel, ViTForImageClassification), VISION, generates=False)
for config_class, models in FAMILIES.items():
    generates = "AutoModelForSeq2SeqLM" in [auto_class.__name__ for auto_class in models]
    name = config_class.__name__.removesuffix("Config") + ("Translation" if generates else "Images")
    sizes = {**SEQ2SEQ, "unk_token_id": 3} if generates else {**VISION, "pooling": "cls"}
    globals()[name] = case_of(name, config_class, tuple(models.values()), sizes, generates=generates)
