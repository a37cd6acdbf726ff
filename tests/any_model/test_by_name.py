"""Attentions by name in models of transformers: against the written-out form, saved, refused, one's own."""

import copy
import itertools

import pytest
import torch
import transformers
from transformers import (
    CONFIG_MAPPING,
    AttentionInterface,
    AttentionMaskInterface,
    AutoModel,
    DataCollatorWithFlattening,
)
from transformers.masking_utils import (
    and_masks,
    causal_mask_function,
    create_chunked_causal_mask,
    sdpa_mask,
    sliding_window_bidirectional_overlay,
)

from builders.covering import covering
from reluformers import exchange_attention
from reluformers.attentions import ATTENTIONS, register_attention
from reluformers.configuration.configuration_attention import ACTIVATIONS

from .tiny import shrink
from .written_out import register_written_out

PADDINGS = ("left", "right", "none")
TEXT = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "pad_token_id": 0}
LLAMA = {**TEXT, "intermediate_size": 48, "num_key_value_heads": 2, "max_position_embeddings": 64}
SEQ2SEQ = {
    "vocab_size": 99,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "pad_token_id": 0,
    "max_position_embeddings": 64,
    "decoder_start_token_id": 1,
    "forced_eos_token_id": None,
}
SAM = {"hidden_size": 32, "mlp_dim": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 32}
MODELS = {
    "llama": ("LlamaForCausalLM", LLAMA),
    "qwen3": ("Qwen3ForCausalLM", {**LLAMA, "head_dim": 8}),
    "mistral": ("MistralForCausalLM", {**LLAMA, "sliding_window": 5}),
    "gemma3": (
        "Gemma3ForCausalLM",
        {**LLAMA, "head_dim": 8, "sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "gpt2": ("GPT2LMHeadModel", {"vocab_size": 99, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}),
    "gpt_neox": ("GPTNeoXForCausalLM", {**TEXT, "intermediate_size": 48, "max_position_embeddings": 64}),
    "opt": ("OPTForCausalLM", {**TEXT, "ffn_dim": 48, "word_embed_proj_dim": 32, "max_position_embeddings": 64}),
    "bert": ("BertForMaskedLM", {**TEXT, "intermediate_size": 48}),
    "roberta": ("RobertaForMaskedLM", {**TEXT, "intermediate_size": 48, "pad_token_id": 1}),
    "modernbert": (
        "ModernBertForMaskedLM",
        {**TEXT, "intermediate_size": 48, "local_attention": 6, "global_attn_every_n_layers": 2},
    ),
    "vit": (
        "ViTForImageClassification",
        {**TEXT, "intermediate_size": 48, "image_size": 16, "patch_size": 4, "num_labels": 3},
    ),
    "bart": ("BartForConditionalGeneration", SEQ2SEQ),
    "marian": ("MarianMTModel", SEQ2SEQ),
    "whisper": (
        "WhisperForConditionalGeneration",
        {**SEQ2SEQ, "num_mel_bins": 8, "max_source_positions": 16, "max_target_positions": 32},
    ),
    "t5": (
        "T5ForConditionalGeneration",
        {
            "vocab_size": 99,
            "d_model": 32,
            "d_kv": 8,
            "d_ff": 48,
            "num_layers": 2,
            "num_heads": 4,
            "decoder_start_token_id": 0,
            "pad_token_id": 0,
        },
    ),
}
DECODERS = ("llama", "qwen3", "mistral", "gemma3", "gpt2", "gpt_neox", "opt")


def build(name, attention, dtype=torch.float32):
    class_name, fields = MODELS[name]
    model_class = getattr(transformers, class_name)
    torch.manual_seed(0)
    model = model_class._from_config(model_class.config_class(**fields), attn_implementation=attention)
    with torch.no_grad():  # in a fresh model attention hardly shows, and a bias of positions is 0
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=1.5 * parameter.shape[-1] ** -0.5)
    return model.to(dtype).eval()


def inputs(name, padding="left"):
    generator = torch.Generator().manual_seed(1)
    if name == "vit":
        return {"pixel_values": torch.randn(2, 3, 16, 16, generator=generator)}
    if name == "whisper":
        features = torch.randn(2, 8, 32, generator=generator)
        return {"input_features": features, "decoder_input_ids": torch.randint(3, 90, (2, 7), generator=generator)}
    batch = {"input_ids": torch.randint(3, 90, (2, 13), generator=generator)}
    mask = torch.ones(2, 13, dtype=torch.long)
    if padding != "none":
        mask[1, slice(0, 4) if padding == "left" else slice(9, None)] = 0
        batch["attention_mask"] = mask
    if name in ("bart", "marian", "t5"):
        batch["decoder_input_ids"] = torch.randint(3, 90, (2, 7), generator=generator)
    return batch


def real_part(output, batch):
    keep = batch.get("attention_mask")
    return output[keep.bool()] if keep is not None and keep.shape == output.shape[:2] else output


def logits(model, name="llama", padding="left"):
    """Logits of the tokens that are no padding."""
    batch = inputs(name, padding)
    return real_part(model(**batch).logits, batch).detach()


def exchanged(attention="relu-vit", name="llama"):
    return exchange_attention(build(name, "eager"), attention)


register_written_out("written_relu", length_exponent=1.0)
register_written_out("written_relu_sum", normalizer="sum")
register_written_out("written_reluformer", length_exponent=0.5, length_coefficient=0.5**0.5)
register_written_out("written_softmax", phi="softmax")
register_attention("exclusive_attention", {"exclusive_output": True})
register_written_out("written_exclusive", phi="softmax", is_exclusive=True)
WRITTEN = {
    "relu_attention": "written_relu",
    "relu_sum_attention": "written_relu_sum",
    "reluformer_attention": "written_reluformer",
    "softmax_attention": "written_softmax",
    "exclusive_attention": "written_exclusive",  # for causal models alone
}


TOLERANCES = {torch.float64: 1e-9, torch.float32: 2e-4}


def outcome(attention, name, padding, dtype):
    """Output and gradients of all parameters."""
    model = build(name, attention, dtype)
    batch = inputs(name, padding)
    batch = {key: part.to(dtype) if part.is_floating_point() else part for key, part in batch.items()}
    output = real_part(model(**batch).logits, batch)
    target = torch.randn(output.shape, generator=torch.Generator().manual_seed(2)).to(dtype)
    (output * target).sum().backward()
    return output.detach(), {key: part.grad for key, part in model.named_parameters() if part.grad is not None}


CASES = {"name": tuple(MODELS), "padding": PADDINGS, "dtype": tuple(TOLERANCES)}
COMPUTED = covering(attention=tuple(WRITTEN)[:4], **CASES)
COMPUTED += covering(attention=("exclusive_attention",), **CASES | {"name": DECODERS})[::2]


@pytest.mark.parametrize("case", COMPUTED, ids=lambda case: "-".join(map(str, case.values())))
def test_a_model_computes_the_written_out_form(case):
    tolerance = TOLERANCES[case["dtype"]]
    output, gradients = outcome(**case)
    expected, expected_gradients = outcome(**{**case, "attention": WRITTEN[case["attention"]]})
    assert (output - expected).norm() <= tolerance * expected.norm()
    assert gradients.keys() == expected_gradients.keys()
    for key, gradient in gradients.items():
        assert (gradient - expected_gradients[key]).norm() <= tolerance * (1 + expected_gradients[key].norm()), key


PACKED = ["llama", "mistral", "gemma3", "bert", "roberta", "modernbert"]
LENGTHS = (5, 1, 7, 2)
FAMILIES = [*ATTENTIONS, *(f"{name}_of_packed" for name in ACTIVATIONS)]
for _name in ACTIVATIONS:
    register_attention(f"{_name}_of_packed", {"activation": _name, "length_exponent": 0.5})


def pack(texts, first_position=0):
    """One row, as the collator of transformers makes it."""
    options = {"return_flash_attn_kwargs": True, "return_seq_idx": True, "position_ids_start": first_position}
    rows = [{"input_ids": text.tolist()} for text in texts]
    batch = dict(DataCollatorWithFlattening(**options, return_tensors="pt")(rows))
    del batch["labels"]
    return batch


@pytest.mark.parametrize(("name", "attention"), list(zip(itertools.cycle(PACKED), FAMILIES, strict=False)))
def test_texts_of_a_packed_row_are_as_each_alone(name, attention):
    """Values and gradients of float64."""
    generator = torch.Generator().manual_seed(1)
    texts = torch.randint(3, 90, (sum(LENGTHS),), generator=generator).split(LENGTHS)
    model = build(name, attention, torch.float64)
    found = model(**pack(texts, 2 if name == "roberta" else 0)).logits[0]
    expected = torch.cat([model(input_ids=text[None]).logits[0] for text in texts])
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)
    direction = torch.randn(found.shape, generator=generator, dtype=torch.float64)
    gradients = (
        torch.autograd.grad(outputs, list(model.parameters()), direction, materialize_grads=True)
        for outputs in (found, expected)
    )
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-6)  # norms of gemma are of float32
    if name in DECODERS:  # positions that begin anew are enough
        batch = {key: part for key, part in pack(texts).items() if key in ("input_ids", "position_ids")}
        torch.testing.assert_close(model(**batch, use_cache=False).logits[0], expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma3"])
def test_a_ready_mask_is_cut_at_the_texts_too(name):
    ids = torch.randint(3, 90, (1, 12), generator=torch.Generator().manual_seed(1))
    batch = pack((ids[0, :5], ids[0, 5:]))
    model = build(name, "relu_attention", torch.float64)
    packed = model(**batch, use_cache=False).logits
    if name == "llama":  # the others have windows, of which a ready mask says nothing
        causal = torch.ones(1, 1, 12, 12).tril().bool()
        torch.testing.assert_close(model(**batch, attention_mask=causal).logits, packed, rtol=1e-4, atol=1e-5)
    del batch["position_ids"]  # rotary positions count alone where texts are apart
    torch.testing.assert_close(model(**batch).logits, packed, rtol=1e-4, atol=1e-5)


SPARSE_TYPES = ("axk2", "deepseek_v32", "dots3_note_text", "glm_moe_dsa")  # the oldest transformers lacks the third


@pytest.mark.parametrize("model_type", [name for name in SPARSE_TYPES if name in CONFIG_MAPPING])
def test_keys_that_a_sparse_attention_has_not_chosen_are_not_seen(model_type):
    config = shrink(CONFIG_MAPPING[model_type]())
    config.index_topk = 3
    model = AutoModel.from_config(config).eval()
    tokens = torch.randint(3, 90, (2, 9))
    outputs = {}
    for name in ("eager", "softmax_attention"):
        model.set_attn_implementation(name)
        with torch.no_grad():
            outputs[name] = model(tokens).last_hidden_state
    torch.testing.assert_close(outputs["softmax_attention"], outputs["eager"])


CACHES = ({}, {"cache_implementation": "static", "disable_compile": True})
CACHED = [
    (name, tuple(WRITTEN)[number % 4], cache)
    for number, (cache, name) in enumerate(itertools.product(CACHES, DECODERS))
]
CACHED += [(name, "exclusive_attention", {}) for name in DECODERS[::3]]


@pytest.mark.parametrize(("name", "attention", "cache"), CACHED)
def test_generation_with_a_cache_gives_the_tokens_of_the_whole(name, attention, cache):
    batch = {**inputs(name, "left"), "max_new_tokens": 6, "do_sample": False, "eos_token_id": None}
    expected = build(name, WRITTEN[attention]).generate(**batch, use_cache=False)
    assert torch.equal(build(name, attention).generate(**batch, **cache), expected)


def test_sinks_of_softmax():
    fields = {**LLAMA, "head_dim": 8, "num_local_experts": 2, "num_experts_per_tok": 1, "sliding_window": 5}
    config = transformers.GptOssConfig(**fields, layer_types=["sliding_attention", "full_attention"])
    torch.manual_seed(0)
    model = transformers.GptOssForCausalLM._from_config(config, attn_implementation="eager").eval()
    for layer in model.model.layers:
        torch.nn.init.normal_(layer.self_attn.sinks)
    expected = logits(model)
    model.set_attn_implementation("softmax_attention")
    torch.testing.assert_close(logits(model), expected, rtol=1e-4, atol=1e-4)
    model.set_attn_implementation("relu_attention")
    with pytest.raises(ValueError, match="sinks"):
        logits(model)


def test_phi_of_ones_own():
    register_attention("squared_attention", lambda scores: torch.relu(scores) ** 2, length_exponent=1.0)
    register_written_out("written_relu2", phi="relu2", length_exponent=1.0)
    outputs = [logits(build("llama", kind)) for kind in ("squared_attention", "written_relu2")]
    torch.testing.assert_close(*outputs, rtol=1e-4, atol=1e-4)


def test_masks_of_both_sides_and_causality_in_any_order():
    both = sliding_window_bidirectional_overlay(2)
    for functions in ([causal_mask_function, both], [both, causal_mask_function], [both]):
        options = {"mask_function": and_masks(*functions), "device": torch.device("cpu")}
        sizes = {"batch_size": 1, "q_length": 6, "kv_length": 8, "q_offset": 2, "kv_offset": 0}
        found = AttentionMaskInterface()["relu_attention"](**sizes, **options)
        expected = sdpa_mask(**sizes, **options, allow_is_causal_skip=False, allow_is_bidirectional_skip=False)
        assert not isinstance(found, torch.Tensor)
        assert torch.equal(found.dense.expand_as(expected), expected)


def attend(*states, mask=None, is_causal=False, **options):
    """Output of `relu_attention` without a model."""
    return AttentionInterface()["relu_attention"](torch.nn.Module(), *states, mask, is_causal=is_causal, **options)[0]


def test_queries_of_a_packed_row_see_keys_of_their_text_alone():
    """Texts begin by numbers for queries and keys, of which one text may have none."""
    query, key, value = torch.randn(3, 1, 2, 12, 8)
    starts = torch.tensor([0, 5, 5, 12])
    lengths = torch.tensor([0, 3, 4, 12])
    found = attend(query, key, value, cu_seq_lens_q=starts, cu_seq_lens_k=lengths)
    for first, last, start, stop in ((0, 5, 0, 3), (5, 12, 4, 12)):
        alone = attend(query[:, :, first:last], key[:, :, start:stop], value[:, :, start:stop])
        torch.testing.assert_close(found[:, first:last], alone)


@pytest.mark.parametrize(
    ("queries", "keys"),
    [
        *((starts, None) for starts in ([3, 7, 12], [0, 7, 5, 12], [0, -3, 12], [0, 5, 13], [[0, 5, 12]])),
        *(([0, 5, 12], starts) for starts in ([2, 5, 12], [0, 12], [0, 6, 12])),
    ],
)
def test_starts_by_which_texts_see_each_other_are_refused(queries, keys):
    starts = {"cu_seq_lens_q": torch.tensor(queries), "cu_seq_lens_k": None if keys is None else torch.tensor(keys)}
    with pytest.raises(ValueError, match="cu_seq_lens"):
        attend(*torch.randn(3, 1, 2, 12, 8), is_causal=True, **starts)


@pytest.mark.slow
def test_packed_rows_and_exchanged_models_compile_as_one_graph():
    texts = torch.randint(3, 90, (43,), generator=torch.Generator().manual_seed(1)).split((20, 13, 10))
    for model, batch in (
        (build("llama", "relu_attention"), pack(texts)),
        (exchanged("rela-g"), {**inputs("llama"), "use_cache": False}),
    ):
        torch.compiler.reset()
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(**batch).logits, model(**batch).logits, rtol=1e-4, atol=1e-4)


def test_states_that_do_not_fit_each_other_are_refused_and_those_that_broadcast_are_not():
    states = torch.randn(2, 4, 16, 8)
    keys = states[:1]
    expanded = keys.expand(2, -1, -1, -1).contiguous()
    torch.testing.assert_close(attend(states, keys, keys), attend(states, expanded, expanded))
    with pytest.raises(RuntimeError):
        attend(states, states, states[:, :, :1].contiguous())
    mask = AttentionMaskInterface()["relu_attention"](2, 16, 5, attention_mask=torch.ones(2, 5), device="cpu")
    with pytest.raises(ValueError, match="mask is of 5 keys"):
        attend(states, states, states, mask=mask)
    config = transformers.Llama4TextConfig(**LLAMA, attention_chunk_size=4, attn_implementation="relu_attention")
    chunks = create_chunked_causal_mask(config, torch.zeros(1, 12, 32), None, None)
    with pytest.raises(ValueError, match="chunks"):
        attend(*torch.randn(3, 1, 2, 12, 8), mask=chunks, cu_seq_lens_q=torch.tensor([0, 5, 12]))


def run_exclusive(name, **options):
    model = build(name, "exclusive_attention")
    return model.generate(**inputs(name), **options) if options else model(**inputs(name))


def set_by_name(class_name, **fields):
    """A model that gets a name of an attention from its configuration."""
    model_class = getattr(transformers, class_name)
    return model_class._from_config(model_class.config_class(**fields), attn_implementation="relu_attention")


BLOCKS = {**SEQ2SEQ, "block_size": 4, "num_global_tokens": 2}
REFUSED = [
    # a query may be of any key
    *(
        ("exclusive_output", run_exclusive, {"name": name})
        for name in ("bert", "modernbert", "vit", "bart", "whisper")
    ),
    ("exclusive_output", run_exclusive, {"name": "llama", "cache_implementation": "static", "max_new_tokens": 2}),
    # other attentions than those that the interface computes
    ("Deberta.*relu_attention", set_by_name, {"class_name": "DebertaModel", **TEXT, "intermediate_size": 48}),
    ("Gemma2.*relu_attention", set_by_name, {"class_name": "Gemma2ForCausalLM", **LLAMA, "head_dim": 8}),
    ("PegasusX.*relu_attention", set_by_name, {"class_name": "PegasusXModel", **BLOCKS}),
    # names that transformers reads more into, and that of an exchange
    *(
        ("name is", register_attention, {"name": name, "attention": "relu"})
        for name in ("sdpa", "eager", "flash_of_mine", "me/repo", "flex_attention", "")
    ),
    ("reluformers_exchanged", register_attention, {"name": "reluformers_exchanged", "attention": "relu"}),
    # a name holds no parameters
    *(
        ("parameters", register_attention, {"name": "mine", "attention": attention})
        for attention in ("qknorm", "rela-g", {"activation": "relu", "learned_threshold": True})
    ),
    ("activation", register_attention, {"name": "mine", "attention": torch.relu, "activation": "relu2"}),
]


@pytest.mark.parametrize(("message", "call", "options"), REFUSED)
def test_what_would_compute_something_else_is_refused(message, call, options):
    with pytest.raises((ValueError, TypeError), match=message):
        call(**options)


def test_a_part_that_cannot_take_it_is_refused_and_the_others_take_it(tmp_path):
    wrapper = transformers.VisionEncoderDecoderModel
    encoder = transformers.SamVisionConfig(**SAM, window_size=2, global_attn_indexes=[1])
    decoder = transformers.BertConfig(**TEXT, intermediate_size=48, is_decoder=True, add_cross_attention=True)
    config = wrapper.config_class.from_encoder_decoder_configs(encoder, decoder)
    model = wrapper._from_config(copy.deepcopy(config))
    model.save_pretrained(tmp_path)
    for use in (
        lambda: wrapper._from_config(copy.deepcopy(config), attn_implementation={"encoder": "relu_attention"}),
        lambda: model.set_attn_implementation("relu_attention"),
        lambda: exchange_attention(model, "relu-vit"),
        lambda: wrapper.from_pretrained(tmp_path, attn_implementation="relu_attention"),
    ):
        with pytest.raises(ValueError, match="SamVisionModel does not take"):
            use()
    model = wrapper.from_pretrained(tmp_path, attn_implementation={"decoder": "relu_attention"})
    assert model.config.decoder._attn_implementation == "relu_attention"
    file = tmp_path / "config.json"
    file.write_text(file.read_text().replace("{", '{"attn_implementation": "of_another_process",', 1))
    with pytest.raises(ValueError, match="of_another_process"):
        wrapper.from_pretrained(tmp_path)


def test_an_argument_that_the_attention_does_not_read_is_refused_and_one_of_other_code_is_not():
    model = build("llama", "relu_attention")
    batch = inputs("llama")
    others = {"tokenizer": object(), "seq_idx": torch.zeros(2, 13).int(), "num_items_in_batch": torch.tensor(3)}
    torch.testing.assert_close(model(**batch, **others).logits, model(**batch).logits)
    with pytest.raises(ValueError, match="unheard_of"):
        model(**batch, unheard_of=torch.ones(1))


@pytest.mark.parametrize("attention", list(WRITTEN)[:4])
def test_weights_that_are_asked_for_are_those_of_the_attention(attention):
    batch = inputs("bert", "right")
    outputs = []
    for name in (attention, WRITTEN[attention]):
        outputs.append(build("bert", name, torch.float64)(**batch, output_attentions=True))
    real = batch["attention_mask"].bool()
    for found, expected in zip(outputs[0].attentions, outputs[1].attentions, strict=True):
        torch.testing.assert_close(found.transpose(1, 2)[real], expected.transpose(1, 2)[real])
    torch.testing.assert_close(outputs[0].logits[real], outputs[1].logits[real])
