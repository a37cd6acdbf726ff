"""What an attention of ours was, it stays or is an error: saved, opened, copied, exchanged and mistaken."""

import copy
import json
import logging
import pickle
from unittest import mock

import peft
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForSequenceClassification,
    LlamaForCausalLM,
)

from builders.clean_processes import run_clean
from reluformers import (
    attentions,
    exchange_attention,
    fit_attention,
    load_adapter,
    register_attention,
    restore_attention,
    save_adapter,
)
from reluformers.exchange import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from reluformers.modeling.attention import MultiHeadAttention
from reluformers.modeling.attention_interface import InterfaceAttention
from reluformers.modeling.modeling_exchanged import ExchangedModel
from reluformers.modeling.pipeline_translation import returning_weights

from .test_by_name import LLAMA, SEQ2SEQ, TEXT, build, exchanged, inputs, logits, real_part

WITHOUT_THE_LIBRARY = """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, LlamaForCausalLM

    def refusal(run):
        try:
            run()
        except ValueError as error:
            return str(error)
        raise AssertionError("softmax in silence")

    first, second = sys.argv[1:]
    ids = torch.arange(3, 12)[None]
    open_model = lambda folder: AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True).eval()
    assert "trust_remote_code" in refusal(lambda: AutoModelForCausalLM.from_pretrained(first))
    assert "reluformers_exchanged" in refusal(lambda: LlamaForCausalLM.from_pretrained(first))
    model, other = open_model(first), open_model(second)
    wanted = model(ids).logits
    assert torch.equal(open_model(first)(ids).logits, wanted)
    assert not torch.allclose(other(ids).logits, wanted, atol=1e-3)
    model.save_pretrained("copy")
    assert torch.equal(open_model("copy")(ids).logits, wanted)
    # a configuration builds the exchanged model, or none
    config = AutoConfig.from_pretrained(first, trust_remote_code=True)
    built = AutoModelForCausalLM.from_config(config, trust_remote_code=True)
    assert any("exchanged_attention" in name for name, _ in built.named_parameters())
    built(ids)
    assert "exchanged" in refusal(lambda: AutoModelForCausalLM.from_config(built.config)(ids))
    torch.save([wanted.detach(), model.generate(ids, max_new_tokens=4)], "found.pt")
"""


def test_folders_without_the_library(tmp_path):
    """Two of them live in one process."""
    model = exchanged("rela-g")
    ids = torch.arange(3, 12)[None]
    model.save_pretrained(tmp_path / "first")
    exchanged().save_pretrained(tmp_path / "second")
    run_clean(WITHOUT_THE_LIBRARY, tmp_path, *(str(tmp_path / name) for name in ("first", "second")))
    found, tokens = torch.load(tmp_path / "found.pt")
    torch.testing.assert_close(found, model(ids).logits.detach(), rtol=1e-4, atol=1e-4)
    assert torch.equal(tokens, model.generate(ids, max_new_tokens=4))


def build_with(name, attention):
    """A model with an attention by name, or with an exchanged one."""
    return exchanged(name=name) if attention == "exchanged" else build(name, attention)


def llava(**attention):
    text = {**LLAMA, "model_type": "llama"}
    vision = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    vision |= {"image_size": 16, "patch_size": 8, "model_type": "clip_vision_model"}
    config = transformers.LlavaConfig(text_config=text, vision_config=vision, image_token_index=98)
    torch.manual_seed(0)
    model = transformers.LlavaForConditionalGeneration._from_config(config, **attention)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()


def test_an_adapter_of_peft_does_not_name_a_model_that_has_softmax(tmp_path):
    build("llama", "sdpa").save_pretrained(tmp_path / "stock")
    model = exchange_attention(AutoModelForCausalLM.from_pretrained(tmp_path / "stock"), "relu-vit")
    save_adapter(model, tmp_path / "own")
    assert json.loads((tmp_path / "own" / ADAPTER_CONFIG).read_text())["base_model"] == str(tmp_path / "stock")
    assert restore_attention(copy.deepcopy(model)).name_or_path == str(tmp_path / "stock")
    lora = peft.LoraConfig(target_modules=["q_proj"], task_type="CAUSAL_LM")
    peft.get_peft_model(copy.deepcopy(model), lora).save_pretrained(tmp_path / "lora")
    with pytest.raises((ValueError, OSError)):
        peft.AutoPeftModelForCausalLM.from_pretrained(tmp_path / "lora")


@pytest.mark.parametrize("name", ["tda_attention", "reluformer_attention", "sigmoid_attention"])
def test_a_key_that_is_hidden_in_half_precision_is_not_counted(name):
    ids = inputs("llama")["input_ids"]
    keep = torch.ones(13, 13).tril()[None, None].bool()
    low = torch.zeros(1, 1, 13, 13, dtype=torch.bfloat16).masked_fill(~keep, -1e4).float()
    outputs = [build("llama", name)(ids, attention_mask=mask.expand(2, -1, -1, -1)).logits for mask in (low, keep)]
    torch.testing.assert_close(*outputs)


@pytest.mark.parametrize("name", ["llama", "bert", "t5", "whisper"])
def test_the_auto_class_of_models_opens_the_one_inside(name, tmp_path):
    model = exchanged("rela-g", name)
    batch = inputs(name)
    output = model(**batch, output_hidden_states=True)
    wanted = output["decoder_hidden_states" if "decoder_hidden_states" in output else "hidden_states"][-1]
    for folder in (tmp_path / "whole", tmp_path / "inside"):
        model.save_pretrained(folder)
        model = transformers.AutoModel.from_pretrained(folder).eval()
        assert torch.equal(model(**batch)[0], wanted)


def test_no_other_program_takes_a_folder_for_a_model_with_softmax(tmp_path):
    """They choose what they run by architectures; transformers serve and TRL open the first one."""
    build("llama", "relu_attention").save_pretrained(tmp_path / "named")
    exchanged().save_pretrained(tmp_path / "exchanged")
    build("llama", "sdpa").save_pretrained(tmp_path / "stock")
    found = {}
    for name in ("named", "exchanged", "stock"):
        config = transformers.AutoConfig.from_pretrained(tmp_path / name)
        found[name] = config.architectures
        model = getattr(transformers, config.architectures[0]).from_pretrained(tmp_path / name)
        assert isinstance(model, LlamaForCausalLM)
    assert found == {
        "named": ["AutoModelForCausalLM", "ReluformersLlamaForCausalLM"],
        "exchanged": ["AutoModelForCausalLM", "ExchangedLlamaForCausalLM"],
        "stock": ["LlamaForCausalLM"],
    }
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "named", attn_implementation="sdpa")
    model.save_pretrained(tmp_path / "back")
    config = json.loads((tmp_path / "back" / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert "attn_implementation" not in config


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
def test_a_ready_mask_is_read_as_sdpa_reads_it(dtype):
    """Floats are added to the scores, also where they are 0 and 1."""
    mask = torch.ones(13, 13).tril()[None, None].expand(2, -1, -1, -1).to(dtype)
    ids = inputs("llama")["input_ids"]
    outputs = [build("llama", name)(ids, attention_mask=mask).logits for name in ("softmax_attention", "sdpa")]
    torch.testing.assert_close(*outputs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["llama", "opt", "whisper"])
def test_a_fixed_scale_is_that_of_dot_products_also_of_queries_that_are_scaled_already(name):
    register_attention("fixed_scale_attention", "relu-vit", scale=0.7)
    wanted = build(name, "written_relu", torch.float64)
    for key, parameter in wanted.named_parameters():
        if "q_proj" in key:
            parameter.data *= 0.7 * 8**0.5  # heads of width 8
    batch = inputs(name)
    batch = {key: part.double() if part.is_floating_point() else part for key, part in batch.items()}
    found = build(name, "fixed_scale_attention", torch.float64)(**batch).logits
    torch.testing.assert_close(real_part(found, batch), real_part(wanted(**batch).logits, batch))


@pytest.mark.parametrize(
    ("name", "fields"), [("llama", {"scale": 0.3}), ("opt", {"learned_scale": True}), ("whisper", {}), ("opt", {})]
)
def test_normed_queries_do_not_depend_on_their_length(name, fields):
    """A norm takes off what a module has multiplied its queries by, such as 1/√d_h."""
    attention = {"preset": "relu-vit", "query_key_norm": "layer_norm", **fields}
    outputs = []
    for factor in (1.0, 100.0):
        model = exchanged(attention, name)
        for key, parameter in model.named_parameters():
            if ".q_proj." in key:
                parameter.data *= factor
            elif key.endswith("scale"):
                assert parameter.item() == pytest.approx(8**-0.5)  # heads of width 8
        outputs.append(logits(model, name))
    torch.testing.assert_close(*outputs, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("norm", ["none", "layer_norm"])
def test_a_cosine_is_that_of_the_normalised_states(norm):
    """As in the module of this library, where the norm comes first."""
    fields = {"score": "cosine", "scale": 2.0, "query_key_norm": norm}
    own = MultiHeadAttention(32, 4, fields)
    module = torch.nn.Module().eval()
    states = torch.randn(2, 5, 32)
    query, key, value = (
        part(states).unflatten(-1, (4, 8)).transpose(1, 2) for part in (own.q_proj, own.k_proj, own.v_proj)
    )
    attention = InterfaceAttention(fields, head_dim=8)
    output, _ = attention(module, query, key, value, None, scaling=8**-0.5, is_causal=False)
    torch.testing.assert_close(own.out_proj(output.flatten(2)), own(states)[0])


def test_nothing_but_its_own_methods_takes_an_attention_off_a_model():
    model = build("llama", "relu_attention")
    wanted = logits(model)
    config = model.config
    config._attn_implementation = "eager"  # as methods of transformers do that need weights
    config._attn_implementation = None
    for name in ("sdpa", "entmax15_attention", {"": "sdpa"}):
        with pytest.raises(ValueError, match="set_attn_implementation"):
            config._attn_implementation = name
    assert torch.equal(logits(model), wanted)
    # another model of the same configuration is another model
    for name in ("eager", "entmax15_attention"):
        other = AutoModelForCausalLM.from_config(config, attn_implementation=name)
        assert other.config._attn_implementation == name
    assert torch.equal(logits(model), wanted)
    stock = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    with pytest.raises(ValueError, match="set_attn_implementation"):  # past the check of the model
        stock.config._attn_implementation = "relu_attention"
    model.set_attn_implementation("sdpa")
    assert not torch.allclose(logits(model), wanted, atol=1e-3)


def test_parts_of_a_model_keep_their_attentions(tmp_path):
    names = {"text_config": "relu_attention", "vision_config": "sdpa"}
    model = llava(attn_implementation=names)
    wanted = logits(model)
    config = model.config
    model.save_pretrained(tmp_path)
    again = AutoModelForImageTextToText.from_pretrained(tmp_path).eval()
    assert {name: getattr(again.config, name)._attn_implementation for name in names} == names
    torch.testing.assert_close(logits(again), wanted)
    exchange_attention(again, "qknorm")
    assert not torch.allclose(logits(again), wanted, atol=1e-3)
    torch.testing.assert_close(logits(restore_attention(again)), wanted)
    config._attn_implementation = "eager"
    config.vision_config._attn_implementation = "sdpa"
    assert torch.equal(logits(model), wanted)
    parts = {name: getattr(config, name) for name in names}
    for copied in (type(config).from_dict(config.to_dict()), type(config)(**parts)):
        assert copied.text_config._attn_implementation == "relu_attention"


def test_an_exchanged_model_takes_no_other_attention(tmp_path):
    model = exchanged()
    before = logits(model)
    model.save_pretrained(tmp_path)
    sdpa = {"attn_implementation": "sdpa"}
    for use in (
        lambda: model.set_attn_implementation("sdpa"),
        lambda: model.model.set_attn_implementation("sdpa"),
        lambda: setattr(model.model.config, "_attn_implementation", "sdpa"),
        lambda: ExchangedModel.from_pretrained(tmp_path, **sdpa),
        lambda: AutoModelForCausalLM.from_pretrained(tmp_path, **sdpa),
        lambda: AutoModelForCausalLM.from_config(model.exchanged_config(), **sdpa),
        lambda: AutoModelForCausalLM.from_config(copy.deepcopy(model.config)),
        lambda: LlamaForCausalLM.from_pretrained(tmp_path),
        lambda: AutoModelForSequenceClassification.from_pretrained(tmp_path),
        lambda: AutoModelForSequenceClassification.from_config(model.exchanged_config()),
        lambda: exchange_attention(model, "relu-vit"),
    ):
        with pytest.raises((ValueError, RuntimeError)):
            use()
        assert torch.equal(logits(model), before)
    # as where this library is not installed: a method of transformers wants weights, another wants softmax
    model.config._attn_implementation_internal = "eager"
    assert torch.equal(logits(model), before)
    model.config._attn_implementation_internal = "sdpa"
    with pytest.raises(ValueError, match="restore_attention"):
        logits(model)


def test_what_a_folder_is_opened_with_is_what_its_model_has(tmp_path):
    config = transformers.BertConfig(**TEXT, intermediate_size=48)
    exchange_attention(transformers.BertForSequenceClassification(config), "relu-vit").save_pretrained(tmp_path)
    open_model = AutoModelForSequenceClassification.from_pretrained
    fields = {"num_labels": 5, "problem_type": "multi_label_classification", "hidden_dropout_prob": 0.37}
    open_model(tmp_path, **fields, ignore_mismatched_sizes=True).save_pretrained(tmp_path / "again")
    again = open_model(tmp_path / "again")
    assert again.classifier.out_features == 5
    assert {name: getattr(again.config, name) for name in fields} == fields
    # what is the default of every configuration is a change here
    usual = open_model(tmp_path / "again", num_labels=2, problem_type=None, ignore_mismatched_sizes=True)
    assert (usual.classifier.out_features, usual.config.num_labels, usual.config.problem_type) == (2, 2, None)
    other = open_model(tmp_path, attention="relu-sum")
    assert other.config.exchanged["attention"]["normalizer"] == "sum"


def test_a_push_keeps_what_it_was_told(tmp_path, monkeypatch):
    model = exchanged()
    push = mock.create_autospec(type(model).push_to_hub)
    monkeypatch.setattr(type(model), "push_to_hub", push)
    options = {"private": True, "token": "t", "revision": "b", "commit_message": "m"}
    model.save_pretrained(tmp_path, push_to_hub=True, repo_id="me/x", **options)
    assert options.items() <= push.call_args.kwargs.items()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("modules", modules) for modules in ({}, {"model.norm": [4, 8, 32]}, {"nowhere": [4, 8, 32]})),
        *(("base_class", base) for base in ("PreTrainedModel", "BertModel", None)),
    ],
)
def test_a_changed_configuration_is_refused(name, value, tmp_path):
    exchanged().save_pretrained(tmp_path)
    change_config(tmp_path, value, name)
    with pytest.raises(ValueError, match=name):
        AutoModelForCausalLM.from_pretrained(tmp_path)


def change_config(folder, value, *path):
    """Change a field of config.json, or one of a part in it."""
    config = json.loads((folder / "config.json").read_text())
    fields = config
    for name in path[:-1]:
        fields = fields.setdefault(name, {})
    fields[path[-1]] = value
    (folder / "config.json").write_text(json.dumps(config))


def test_an_exchanged_model_is_pickled():
    model = exchanged("rela-g")
    assert torch.equal(logits(pickle.loads(pickle.dumps(model))), logits(model))


def save_changed_adapter(folder, name=None, value=None):
    """Save the adapter of a Llama with another tensor of one name, or without its first one."""
    save_adapter(exchanged("rela-g"), folder)
    weights = load_file(folder / ADAPTER_WEIGHTS)
    if value is None:
        del weights[next(iter(weights))]
    else:
        weights[name or next(iter(weights))] = value
    save_file(weights, folder / ADAPTER_WEIGHTS)


@pytest.mark.parametrize(
    ("value", "class_name", "fields"),
    [
        (None, "LlamaForCausalLM", LLAMA),
        (torch.zeros(3), "LlamaForCausalLM", LLAMA),
        (None, "LlamaForCausalLM", {**LLAMA, "hidden_size": 64}),
        (None, "MistralForCausalLM", LLAMA),
        (None, "LlamaForCausalLM", {**LLAMA, "num_hidden_layers": 3}),
    ],
)
def test_an_adapter_that_does_not_fit_is_refused(value, class_name, fields, tmp_path):
    save_changed_adapter(tmp_path, value=value)
    model_class = getattr(transformers, class_name)
    model = model_class(model_class.config_class(**fields)).eval()
    before = logits(model)
    with pytest.raises((ValueError, RuntimeError)):
        load_adapter(model, tmp_path)
    assert type(model) is model_class
    assert torch.equal(logits(model), before)


def test_an_adapter_changes_no_weight_of_the_model(tmp_path):
    save_changed_adapter(tmp_path, "lm_head.weight", torch.zeros(LLAMA["vocab_size"], LLAMA["hidden_size"]))
    assert load_adapter(build("llama", "eager"), tmp_path).lm_head.weight.any()


class OwnLlama(LlamaForCausalLM):
    """A user's class, which no folder could name."""


def build_scaled_twice():
    register_attention("fixed_scale_attention", "relu-vit", scale=0.7)
    config = transformers.TimesFmConfig(hidden_size=32, intermediate_size=48, num_hidden_layers=1, head_dim=8)
    transformers.TimesFmModel._from_config(config, attn_implementation="fixed_scale_attention")


REFUSED = {
    "int64": lambda: build("llama", "relu_attention")(torch.arange(3, 12)[None], torch.ones(1, 1, 9, 9).long()),
    "sites": lambda: exchange_attention(build("llama", "relu_attention"), "relu-vit", ["model.layers.0.*"]),
    "output_gate": lambda: exchanged({"preset": "relu", "output_gate": "sigmoid"}),
    "batch": lambda: fit_attention(exchanged("qknorm"), []),
    "scale of its queries": build_scaled_twice,
    "Peft": lambda: exchange_attention(
        peft.get_peft_model(build("llama", "eager"), peft.LoraConfig(target_modules=["q_proj"])), "rela-g"
    ),
    "OwnLlama": lambda: exchange_attention(OwnLlama(LlamaForCausalLM.config_class(**LLAMA)), "rela-g"),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_is_refused(message):
    with pytest.raises(ValueError, match=message):
        REFUSED[message]()


def test_an_attention_that_computes_softmax_by_itself_is_an_error(monkeypatch):
    model_class = transformers.PegasusXForConditionalGeneration
    config = transformers.PegasusXConfig(**SEQ2SEQ, block_size=4, num_global_tokens=2)
    ids = torch.arange(3, 11)[None]
    batch = {"input_ids": ids, "decoder_input_ids": ids}
    monkeypatch.delitem(attentions.REFUSED, "pegasus_x")  # as of a type that nobody has tried
    model = model_class._from_config(copy.deepcopy(config), attn_implementation="relu_attention").eval()
    exchanged = exchange_attention(model_class(copy.deepcopy(config)), "rela-g").eval()
    for one in (model, exchanged):
        for _ in range(2):
            with pytest.raises(ValueError, match="PegasusXGlobalLocalAttention"):
                one(**batch)
    # of what does not run, and of other models meanwhile, nothing is said
    encoded = model_class(copy.deepcopy(config)).get_encoder()(ids)
    model(encoder_outputs=encoded, decoder_input_ids=ids)
    model.set_attn_implementation("eager")
    model(**batch)
    restore_attention(exchanged)(**batch)
    # only the first forward is watched
    assert not model._forward_pre_hooks
    assert not torch.overrides._get_current_function_mode_stack()


def test_no_name_at_all_is_the_saved_one(tmp_path):
    """TRL and `transformers serve` pass None where nobody chose an attention."""
    for attention in ("relu_attention", "exchanged"):
        folder = tmp_path / attention
        model = build_with("llama", attention)
        model.save_pretrained(folder)
        wanted = logits(model)
        config = transformers.AutoConfig.from_pretrained(folder, attn_implementation=None)
        for options in ({}, {"config": config}):
            opened = AutoModelForCausalLM.from_pretrained(folder, attn_implementation=None, **options)
            assert torch.equal(logits(opened), wanted)
    folder = tmp_path / "relu_attention"
    opened = LlamaForCausalLM.from_pretrained(folder, attn_implementation=None)
    assert torch.equal(logits(opened), logits(build("llama", "relu_attention")))
    # a name that was taken out of the file is no choice
    change_config(folder, None, "attn_implementation")
    with pytest.raises(ValueError, match="saved with an attention by name"):
        AutoModelForCausalLM.from_pretrained(folder)


@pytest.mark.parametrize("attention", ["relu_attention", "exchanged"])
def test_a_configuration_that_is_copied_as_a_dict_keeps_its_attention(attention):
    model = build_with("llama", attention)
    kind = type(model.config)
    fields = model.config.to_dict()
    for config in (kind.from_dict(fields), kind(**fields)):
        assert config._attn_implementation == model.config._attn_implementation
        if attention == "exchanged":
            with pytest.raises(ValueError, match="exchange"):
                AutoModelForCausalLM.from_config(config)


@pytest.mark.parametrize("attention", ["relu_attention", "exchanged"])
def test_what_returns_weights_stays_what_it_is(attention):
    model = build_with("marian", attention)
    batch = inputs("marian")
    wanted = model(**batch).logits
    found = returning_weights(model)(**batch, output_attentions=True)
    torch.testing.assert_close(found.logits, wanted)
    assert torch.equal(model(**batch).logits, wanted)
    model.config.output_attentions = True
    for output in (found, model(**batch)):
        assert any((weights == 0).any() for weights in output.cross_attentions)


def test_softmax_in_a_model_that_was_saved_with_another_attention_is_said_once(tmp_path, caplog):
    build("llama", "relu_attention").save_pretrained(tmp_path)
    for open_with_softmax in (
        lambda: AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="sdpa"),
        lambda: AutoModelForCausalLM.from_pretrained(tmp_path).set_attn_implementation("eager"),
    ):
        transformers.utils.logging.get_logger().warning_once.cache_clear()
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            for _ in range(2):
                open_with_softmax()
        assert caplog.text.count("which computes softmax") == 1
