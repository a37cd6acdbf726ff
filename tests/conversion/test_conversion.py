"""Models of transformers become ours and go back: logits, generation, loss, gradients and every weight."""

import random
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard
from safetensors.torch import load_file, save_file, save_model
from transformers import (
    AutoModelForImageClassification,
    AutoModelForSeq2SeqLM,
    BartConfig,
    BartForConditionalGeneration,
    BartModel,
    DeiTConfig,
    DeiTForImageClassification,
    GenerationConfig,
    MarianConfig,
    MarianMTModel,
    MBartConfig,
    MBartForConditionalGeneration,
    ViTConfig,
    ViTForImageClassification,
)

from reluformers import seq2seq_config, vision_config
from reluformers.conversion.convert import convert, convert_back
from reluformers.conversion.sources import ACTIVATIONS
from reluformers.files import MARK

SEQ2SEQ = {
    "marian": (MarianConfig, MarianMTModel),
    "bart": (BartConfig, BartForConditionalGeneration),
    "mbart": (MBartConfig, MBartForConditionalGeneration),
}
VISION = {"vit": (ViTConfig, ViTForImageClassification), "deit": (DeiTConfig, DeiTForImageClassification)}
VOCABULARY, PAD, EOS = 23, 22, 0


def shake(model):
    """Weights as of a trained model: wide, no two alike, biases not 0; the row of the padding stays 0."""
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            is_computed = name.endswith("embed_positions.weight") and model.config.model_type == "marian"
            if tensor.is_floating_point() and not is_computed:
                tensor.normal_(1.0 if "norm" in name and "weight" in name else 0.0, 0.3)
    model.tie_weights()
    return model.eval()


def random_seq2seq(kind: str, seed: int, **fields):
    draw = random.Random(seed)
    heads, other_heads = draw.choice([(1, 2), (2, 4), (4, 2)])
    config_class, model_class = SEQ2SEQ[kind]
    options = {
        "vocab_size": VOCABULARY,
        "d_model": 8 * draw.choice([1, 2]),
        "encoder_layers": draw.choice([1, 2]),
        "decoder_layers": draw.choice([1, 2, 3]),
        "encoder_attention_heads": heads,
        "decoder_attention_heads": other_heads,
        "encoder_ffn_dim": draw.choice([12, 20]),
        "decoder_ffn_dim": draw.choice([12, 20]),
        "max_position_embeddings": draw.choice([16, 24]),
        "activation_function": draw.choice(sorted(ACTIVATIONS)),
        "scale_embedding": draw.random() < 0.5,
        "tie_word_embeddings": draw.random() < 0.7,
        "dropout": draw.choice([0.0, 0.3]),
        "pad_token_id": PAD,
        "eos_token_id": EOS,
        "bos_token_id": draw.choice([0, 3] if kind != "marian" else [0, None]),
        "decoder_start_token_id": PAD if kind == "marian" else 2,
        **fields,
    }
    if kind == "marian" and draw.random() < 0.5:
        options |= {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": VOCABULARY}
    model = shake(model_class(config_class(**options)))
    model.generation_config = GenerationConfig(
        pad_token_id=PAD,
        eos_token_id=EOS,
        decoder_start_token_id=options["decoder_start_token_id"],
        bad_words_ids=[[PAD], [4], [5, 6]],
        forced_eos_token_id=EOS,
        forced_bos_token_id=draw.choice([None, 7]),
        max_length=10,
        num_beams=4,
        length_penalty=0.8,
    )
    return model


def random_vision(kind: str, seed: int, **fields):
    draw = random.Random(seed)
    config_class, model_class = VISION[kind]
    options = {
        "hidden_size": 8 * draw.choice([1, 2]),
        "num_hidden_layers": draw.choice([1, 3]),
        "num_attention_heads": draw.choice([1, 2, 4]),
        "intermediate_size": draw.choice([12, 20]),
        "image_size": draw.choice([8, [8, 12], [16, 8]]),
        "patch_size": draw.choice([4, [4, 4]]),
        "num_channels": draw.choice([1, 3]),
        "hidden_act": draw.choice(sorted(ACTIVATIONS)),
        "qkv_bias": draw.random() < 0.5,
        "layer_norm_eps": draw.choice([1e-12, 1e-5]),
        "num_labels": 5,
        **fields,
    }
    return shake(model_class(config_class(**options)))


def tokens(*shape) -> torch.Tensor:
    return torch.randint(1, PAD, shape)


def seq2seq_inputs(model) -> dict[str, torch.Tensor]:
    input_ids, mask, labels = tokens(3, 7), torch.ones(3, 7, dtype=torch.long), tokens(3, 6)
    input_ids[1, 4:], mask[1, 4:], labels[2, 3:] = PAD, 0, -100
    return {"input_ids": input_ids, "attention_mask": mask, "labels": labels}


def vision_inputs(model) -> dict[str, torch.Tensor]:
    size = model.config.image_size
    height, width = (size, size) if isinstance(size, int) else size
    return {
        "pixel_values": torch.randn(3, model.config.num_channels, height, width),
        "labels": torch.tensor([0, 4, 2]),
    }


def there_and_back(theirs, auto_class: type, inputs: dict, folder: Path) -> list:
    """The model as ours, and converted back, which compute the same."""
    theirs.save_pretrained(folder / "source")
    convert(folder / "source", folder / "ours")
    convert_back(folder / "ours", folder / "back")
    check_weights(folder / "source", folder / "back")
    ours, back = (auto_class.from_pretrained(folder / name) for name in ("ours", "back"))
    assert type(back) is type(theirs)
    expected = theirs(**inputs)
    for model in (ours, back):
        computed = model(**inputs)
        torch.testing.assert_close(computed.logits, expected.logits, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(computed.loss, expected.loss, atol=1e-5, rtol=1e-5)
    return [ours, back]


# some configurations in every run, more of them where there is time
def seeds(few: int, all_of_them: int) -> list:
    return [*range(few), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(few, all_of_them))]


@pytest.mark.parametrize("seed", seeds(1, 8))
@pytest.mark.parametrize("kind", SEQ2SEQ)
def test_translation_models_go_there_and_back(kind, seed, tmp_path):
    theirs = random_seq2seq(kind, seed)
    inputs = seq2seq_inputs(theirs)
    ours, back = there_and_back(theirs, AutoModelForSeq2SeqLM, inputs, tmp_path)
    assert type(ours).__name__ == "Seq2SeqTransformerForConditionalGeneration"
    source = {"input_ids": inputs["input_ids"], "attention_mask": inputs["attention_mask"]}
    for search in ({}, {"num_beams": 1}, {"num_beams": 3, "num_return_sequences": 2}):
        expected = theirs.generate(**source, **search)
        for model in (ours, back):
            torch.testing.assert_close(model.generate(**source, **search), expected)


@pytest.mark.parametrize("seed", seeds(2, 10))
@pytest.mark.parametrize("kind", VISION)
def test_image_models_go_there_and_back(kind, seed, tmp_path):
    theirs = random_vision(kind, seed)
    theirs.config.id2label = {number: f"class {number}" for number in range(5)}
    ours, _ = there_and_back(theirs, AutoModelForImageClassification, vision_inputs(theirs), tmp_path)
    assert ours.config.id2label == theirs.config.id2label


def check_weights(before, after):
    """What went there and back are the same bits; a matrix that nothing reads may be another."""
    before, after = (load_file(folder / "model.safetensors") for folder in (before, after))
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        if name != "model.shared.weight" or "lm_head.weight" not in before:
            assert torch.equal(tensor, after[name]), name


@pytest.mark.parametrize(("kind", "is_joint"), [("marian", True), ("marian", False), ("bart", True), ("mbart", True)])
def test_of_tied_matrices_a_file_may_keep_any(kind, is_joint, tmp_path):
    """`save_model` of safetensors keeps the output layer's name and neither embedding's."""
    marian = {"decoder_vocab_size": VOCABULARY, "share_encoder_decoder_embeddings": is_joint}
    theirs = random_seq2seq(kind, 5, tie_word_embeddings=True, **(marian if kind == "marian" else {}))
    theirs.save_pretrained(tmp_path / "theirs")
    save_model(theirs, tmp_path / "theirs" / "model.safetensors")
    kept = load_file(tmp_path / "theirs" / "model.safetensors")
    assert "lm_head.weight" in kept
    assert "model.decoder.embed_tokens.weight" not in kept
    ours = convert(tmp_path / "theirs", tmp_path / "ours")
    inputs = seq2seq_inputs(theirs)
    expected = theirs(**inputs).logits
    torch.testing.assert_close(ours(**inputs).logits, expected, atol=1e-5, rtol=1e-5)
    save_model(ours, tmp_path / "ours" / "model.safetensors")
    back = convert_back(tmp_path / "ours", tmp_path / "back")
    torch.testing.assert_close(back(**inputs).logits, expected, atol=1e-5, rtol=1e-5)
    again = convert(tmp_path / "ours", tmp_path / "again", "rela-g", ["cross"])
    assert torch.equal(again.lm_head.weight, ours.lm_head.weight)


@pytest.mark.parametrize("form", ["shards", "bin", "bare", "half"])
def test_files_of_every_form_are_read(form, tmp_path):
    theirs = random_seq2seq("bart", 3, tie_word_embeddings=True)
    if form == "half":
        theirs = theirs.to(torch.bfloat16)
    if form == "bare":
        bare = BartModel(theirs.config)
        bare.load_state_dict(theirs.model.state_dict())
        bare.save_pretrained(tmp_path)
        theirs.final_logits_bias.zero_()
    else:
        theirs.save_pretrained(tmp_path, max_shard_size="3KB" if form == "shards" else "1GB")
    if form == "bin":
        torch.save(load_file(tmp_path / "model.safetensors"), tmp_path / "pytorch_model.bin")
        (tmp_path / "model.safetensors").unlink()
    ours = convert(tmp_path, tmp_path / "ours")
    assert ours.dtype == theirs.dtype
    inputs = seq2seq_inputs(theirs)
    tolerance = {"atol": 0.1, "rtol": 0.1} if form == "half" else {"atol": 1e-5, "rtol": 1e-5}
    torch.testing.assert_close(ours(**inputs).logits, theirs(**inputs).logits, **tolerance)


def test_origin_and_licence_stand_in_the_card(tmp_path):
    random_vision("vit", 0).save_pretrained(tmp_path / "source")
    (tmp_path / "source/README.md").write_text("---\nlicense: cc-by-4.0\nbase_model: org/vit\n---\n# x\n")
    convert(tmp_path / "source", tmp_path / "ours")
    card = ModelCard.load(tmp_path / "ours/README.md").data
    assert (card.license, card.base_model, card.base_model_relation) == ("cc-by-4.0", "org/vit", "finetune")


def test_weights_that_do_not_fit_are_refused_by_name(tmp_path):
    random_vision("vit", 0).save_pretrained(tmp_path)
    path, bias = tmp_path / "model.safetensors", "vit.layernorm.bias"
    weights = load_file(path)
    more, other = {"vit.encoder.layer.0.layer_scale": torch.ones(8)}, {bias: torch.ones(3)}
    fewer = {name: tensor for name, tensor in weights.items() if name != bias}
    for changed, named in ((weights | more, "layer_scale"), (fewer, r"vit\.norm\.bias"), (weights | other, "shape")):
        save_file(changed, path, metadata={"format": "pt"})
        with pytest.raises(ValueError, match=named):
            convert(tmp_path, tmp_path / "ours")


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (seq2seq_config("relu"), "encoder_attention"),
        (seq2seq_config("softmax", cross_attention="qknorm"), "cross_attention"),
        (seq2seq_config("softmax"), "marian.*position_embedding_type"),
        (vision_config("softmax", "Ti/4", pooling="mean"), "vit.*pooling"),
    ],
)
def test_what_others_cannot_compute_does_not_go_back(config, named, tmp_path):
    config.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=named):
        convert_back(tmp_path, tmp_path / "back")


def test_neither_source_nor_checkpoint_is_lost(tmp_path):
    """`--overwrite` is meant for an older result."""
    run = tmp_path / "results" / "run"
    random_vision("vit", 0).save_pretrained(run)
    training = tmp_path / "other" / "checkpoint-3"
    training.mkdir(parents=True)
    (training / "trainer_state.json").touch()
    for folder in (run, run.parent, training.parent):
        (folder / MARK).touch()
    (tmp_path / "link").symlink_to(run)
    before = sorted(tmp_path.rglob("*"))
    for folder in (run, run.parent, tmp_path / "link", training.parent):
        with pytest.raises(ValueError, match="choose another folder"):
            convert(run, folder, overwrite=True)
    assert sorted(tmp_path.rglob("*")) == before
