"""What an attention of ours was, it stays or is an error: saved, opened, copied, exchanged and mistaken."""

import copy
import json
import logging
import pickle

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
    TranslationPipeline,
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
from reluformers.modeling.modeling_exchanged import SUBMODULE, ExchangedModel
from reluformers.modeling.pipeline_translation import returning_weights
from reluformers.translation.tokenization import train_tokenizer

from .test_by_name import LLAMA, SEQ2SEQ, TEXT, build, inputs, real_part

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
    model, ids = exchange_attention(build("llama", "eager"), "rela-g"), torch.arange(3, 12)[None]
    model.save_pretrained(tmp_path / "first")
    exchange_attention(build("llama", "eager"), "relu-vit").save_pretrained(tmp_path / "second")
    run_clean(WITHOUT_THE_LIBRARY, tmp_path, *(str(tmp_path / name) for name in ("first", "second")))
    found, tokens = torch.load(tmp_path / "found.pt")
    torch.testing.assert_close(found, model(ids).logits.detach(), rtol=1e-4, atol=1e-4)
    assert torch.equal(tokens, model.generate(ids, max_new_tokens=4))


def logits(model, name="llama"):
    batch = inputs(name)
    return real_part(model(**batch).logits, batch).detach()


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


def test_a_part_of_a_model_keeps_its_attention(tmp_path):
    names = {"text_config": "relu_attention", "vision_config": "sdpa"}
    model = llava(attn_implementation=names)
    model.save_pretrained(tmp_path)
    again = AutoModelForImageTextToText.from_pretrained(tmp_path).eval()
    assert {name: getattr(again.config, name)._attn_implementation for name in names} == names
    torch.testing.assert_close(logits(again), logits(model))


def test_restoring_gives_each_part_what_it_had():
    model = llava(attn_implementation={"text_config": "relu_attention", "vision_config": "sdpa"})
    before = logits(model)
    exchange_attention(model, "qknorm")
    assert not torch.allclose(logits(model), before, atol=1e-3)
    assert torch.equal(logits(restore_attention(model)), before)


def test_an_exchanged_model_takes_no_other_attention(tmp_path):
    model = exchange_attention(build("llama", "eager"), "relu-vit")
    before = logits(model)
    with pytest.raises(ValueError, match="restore_attention"):
        model.set_attn_implementation("sdpa")
    assert torch.equal(logits(model), before)
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="restore_attention"):
        ExchangedModel.from_pretrained(tmp_path, attn_implementation="sdpa")
    with pytest.raises(ValueError, match="restore_attention"):
        AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="sdpa")
    with pytest.raises(ValueError, match="restore_attention"):
        AutoModelForCausalLM.from_config(model.exchanged_config(), attn_implementation="sdpa")
    with pytest.raises((ValueError, RuntimeError)):
        LlamaForCausalLM.from_pretrained(tmp_path)
    with pytest.raises(ValueError, match="LlamaForCausalLM"):  # a stock model of its configuration
        AutoModelForCausalLM.from_config(copy.deepcopy(model.config))
    with pytest.raises(ValueError, match="restore_attention"):
        model.model.set_attn_implementation("sdpa")
    with pytest.raises(ValueError, match="restore_attention"):
        model.model.config._attn_implementation = "sdpa"
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
    again = open_model(tmp_path / "again", output_hidden_states=True)
    assert again(torch.arange(3, 9)[None]).logits.shape == (1, 5)
    assert again(torch.arange(3, 9)[None]).hidden_states
    assert {name: getattr(again.config, name) for name in fields} == fields
    # what is the default of every configuration is a change here
    usual = open_model(tmp_path / "again", num_labels=2, problem_type=None, ignore_mismatched_sizes=True)
    assert (usual.classifier.out_features, usual.config.num_labels, usual.config.problem_type) == (2, 2, None)
    assert len(usual.exchanged_config().id2label) == 2
    other = open_model(tmp_path, attention="relu-sum")
    assert other.config.exchanged["attention"]["normalizer"] == "sum"


def test_an_adapter_of_peft_does_not_name_a_model_that_has_softmax(tmp_path):
    peft = pytest.importorskip("peft")
    build("llama", "sdpa").save_pretrained(tmp_path / "stock")
    model = exchange_attention(AutoModelForCausalLM.from_pretrained(tmp_path / "stock"), "relu-vit")
    save_adapter(model, tmp_path / "own")
    assert json.loads((tmp_path / "own" / ADAPTER_CONFIG).read_text())["base_model"] == str(tmp_path / "stock")
    lora = peft.LoraConfig(target_modules=["q_proj"], task_type="CAUSAL_LM")
    peft.get_peft_model(copy.deepcopy(model), lora).save_pretrained(tmp_path / "lora")
    with pytest.raises((ValueError, OSError)):
        peft.AutoPeftModelForCausalLM.from_pretrained(tmp_path / "lora")
    model.save_pretrained(tmp_path / "exchanged")
    tuned = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(tmp_path / "exchanged"), lora)
    tuned.save_pretrained(tmp_path / "good")
    again = peft.AutoPeftModelForCausalLM.from_pretrained(tmp_path / "good")
    assert torch.equal(logits(again.eval()), logits(tuned.eval()))
    assert restore_attention(model).name_or_path == str(tmp_path / "stock")


def test_a_push_keeps_what_it_was_told(tmp_path, monkeypatch):
    told = {}
    model = exchange_attention(build("llama", "sdpa"), "relu-vit")

    def push(self, repo_id, *, private=None, token=None, revision=None, commit_message=None):
        told.update(repo_id=repo_id, private=private, token=token, revision=revision, commit_message=commit_message)

    monkeypatch.setattr(type(model), "push_to_hub", push)
    options = {"private": True, "token": "t", "revision": "b", "commit_message": "m"}
    model.save_pretrained(tmp_path, push_to_hub=True, repo_id="me/x", **options)
    assert told == {"repo_id": "me/x", **options}


def test_what_returns_weights_stays_what_it_is(tmp_path):
    texts = train_tokenizer(["a dog runs", "a cat sleeps"], vocab_size=40, min_frequency=1)
    for attention in ("relu_attention", "exchanged"):
        torch.manual_seed(0)
        ids = {"eos_token_id": 2, "decoder_start_token_id": 0, "forced_eos_token_id": 2}
        config = transformers.MarianConfig(**{**SEQ2SEQ, "vocab_size": len(texts), **ids})
        given = {} if attention == "exchanged" else {"attn_implementation": attention}
        model = transformers.MarianMTModel._from_config(config, **given).eval()
        if attention == "exchanged":
            model = exchange_attention(model, "relu-vit")
        batch = {"input_ids": torch.arange(3, 9)[None], "decoder_input_ids": torch.arange(3, 7)[None]}
        wanted = model(**batch).logits
        found = returning_weights(model)(**batch, output_attentions=True)
        torch.testing.assert_close(found.logits, wanted)
        assert any((weights == 0).any() for weights in found.cross_attentions), attention
        assert model(**batch).logits.equal(wanted)
        links = TranslationPipeline(model, texts)("a dog runs", return_alignments=True, max_new_tokens=6)
        assert "alignments" in links[0]


@pytest.mark.parametrize("name", ["tda_attention", "reluformer_attention", "sigmoid_attention"])
def test_a_key_that_is_hidden_in_half_precision_is_not_counted(name):
    ids, keep = inputs("llama")["input_ids"], torch.ones(13, 13).tril()[None, None].bool()
    low = torch.zeros(1, 1, 13, 13, dtype=torch.bfloat16).masked_fill(~keep, -1e4).float()
    outputs = [build("llama", name)(ids, attention_mask=mask.expand(2, -1, -1, -1)).logits for mask in (low, keep)]
    torch.testing.assert_close(*outputs)


@pytest.mark.parametrize("name", ["llama", "qwen3", "opt", "t5", "vit"])
def test_a_learned_scale_changes_nothing_at_the_start(name):
    model = exchange_attention(build(name, "softmax_attention"), {"activation": "softmax", "learned_scale": True})
    torch.testing.assert_close(
        logits(model, name), logits(build(name, "softmax_attention"), name), rtol=1e-3, atol=1e-3
    )


@pytest.mark.parametrize(
    "change",
    [
        {"modules": {}},
        {"modules": {"model.norm": [4, 8, 32]}},
        {"modules": {"nowhere": [4, 8, 32]}},
        {"base_class": "PreTrainedModel"},
        {"base_class": "BertModel"},
        {"base_class": None},
    ],
    ids=str,
)
def test_a_changed_configuration_is_refused(change, tmp_path):
    exchange_attention(build("llama", "eager"), "relu-vit").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(ValueError, match=next(iter(change))):
        AutoModelForCausalLM.from_pretrained(tmp_path)


def test_an_exchanged_model_is_pickled():
    model = exchange_attention(build("llama", "eager"), "rela-g")
    assert torch.equal(logits(pickle.loads(pickle.dumps(model))), logits(model))


class OwnLlama(LlamaForCausalLM):
    """A user's class, which no folder could name."""


def test_only_models_of_transformers_are_exchanged():
    peft = pytest.importorskip("peft")
    wrapped = peft.get_peft_model(build("llama", "eager"), peft.LoraConfig(target_modules=["q_proj"]))
    before = logits(wrapped)
    with pytest.raises(ValueError, match="Peft"):
        exchange_attention(wrapped, "rela-g")
    assert torch.equal(logits(wrapped), before)
    with pytest.raises(ValueError, match="OwnLlama"):
        exchange_attention(OwnLlama(LlamaForCausalLM.config_class(**LLAMA)), "rela-g")


@pytest.mark.parametrize(
    "change", ["a missing weight", "another shape", "another model", "another class", "more layers"]
)
def test_an_adapter_that_does_not_fit_is_refused(change, tmp_path):
    save_adapter(exchange_attention(build("llama", "eager"), "rela-g"), tmp_path)
    weights = load_file(tmp_path / ADAPTER_WEIGHTS)
    name = next(iter(weights))
    if change == "a missing weight":
        del weights[name]
    elif change == "another shape":
        weights[name] = torch.zeros(3)
    save_file(weights, tmp_path / ADAPTER_WEIGHTS)
    model = build("mistral" if change == "another class" else "llama", "relu_attention")
    if sizes := {"another model": {"hidden_size": 64}, "more layers": {"num_hidden_layers": 3}}.get(change):
        model = LlamaForCausalLM(LlamaForCausalLM.config_class(**{**LLAMA, **sizes})).eval()
    before, model_class = logits(model), type(model)
    with pytest.raises((ValueError, RuntimeError)):
        load_adapter(model, tmp_path)
    assert type(model) is model_class
    assert torch.equal(logits(model), before)
    model.save_pretrained(tmp_path / "again")
    assert torch.equal(logits(AutoModelForCausalLM.from_pretrained(tmp_path / "again")), before)


def test_an_adapter_changes_no_weight_of_the_model(tmp_path):
    save_adapter(exchange_attention(build("llama", "eager"), "rela-g"), tmp_path)
    weights = load_file(tmp_path / ADAPTER_WEIGHTS)
    weights["lm_head.weight"] = torch.zeros(LLAMA["vocab_size"], LLAMA["hidden_size"])
    save_file(weights, tmp_path / ADAPTER_WEIGHTS)
    assert load_adapter(build("llama", "eager"), tmp_path).lm_head.weight.any()


def test_an_auto_class_opens_what_it_is_asked_for_or_nothing(tmp_path):
    model = exchange_attention(build("llama", "eager"), "relu-vit")
    model.save_pretrained(tmp_path)
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    assert torch.equal(logits(AutoModelForCausalLM.from_pretrained(tmp_path).eval()), logits(model))
    assert type(AutoModelForCausalLM.from_config(config)) is type(model)
    for make, given in (
        (AutoModelForSequenceClassification.from_pretrained, tmp_path),
        (AutoModelForSequenceClassification.from_config, config),
    ):
        with pytest.raises(ValueError, match="AutoModelForCausalLM"):
            make(given)


@pytest.mark.parametrize("name", ["llama", "bert", "t5", "whisper"])
def test_the_auto_class_of_models_opens_the_one_inside(name, tmp_path):
    model = exchange_attention(build(name, "eager"), "rela-g")
    model.save_pretrained(tmp_path / "whole")
    inside = transformers.AutoModel.from_pretrained(tmp_path / "whole").eval()
    assert not hasattr(inside, "lm_head")
    batch = {key: part for key, part in inputs(name).items() if key != "labels"}
    output = model(**batch, output_hidden_states=True)
    wanted = output["decoder_hidden_states" if "decoder_hidden_states" in output else "hidden_states"][-1]
    assert torch.equal(inside(**batch)[0], wanted)
    inside.save_pretrained(tmp_path / "inside")
    again = transformers.AutoModel.from_pretrained(tmp_path / "inside").eval()
    assert torch.equal(again(**batch)[0], wanted)


def test_no_other_program_takes_a_folder_for_a_model_with_softmax(tmp_path):
    """They choose what they run by architectures; transformers serve and TRL open the first one."""
    build("llama", "relu_attention").save_pretrained(tmp_path / "named")
    exchange_attention(build("llama", "sdpa"), "relu-vit").save_pretrained(tmp_path / "exchanged")
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
    assert "attn_implementation" not in json.loads((tmp_path / "back" / "config.json").read_text())
    assert transformers.AutoConfig.from_pretrained(tmp_path / "back").architectures == ["LlamaForCausalLM"]


REFUSED = {
    "int64": lambda: build("llama", "relu_attention")(torch.arange(3, 12)[None], torch.ones(1, 1, 9, 9).long()),
    "sites": lambda: exchange_attention(build("llama", "relu_attention"), "relu-vit", ["model.layers.0.*"]),
    "output_gate": lambda: exchange_attention(build("llama", "eager"), {"preset": "relu", "output_gate": "sigmoid"}),
    "relaformer": lambda: exchange_attention(build("llama", "eager"), "relaformer"),
    "of transformers": lambda: exchange_attention(exchange_attention(build("llama", "eager"), "relu-vit"), "relu-vit"),
    "batch": lambda: fit_attention(exchange_attention(build("llama", "eager"), "qknorm"), []),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_is_refused(message):
    with pytest.raises(ValueError, match=message):
        REFUSED[message]()


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
    batch, outputs = inputs(name), []
    for factor in (1.0, 100.0):
        model = exchange_attention(build(name, "sdpa"), attention).eval()
        for module in model.modules():
            if hasattr(module, SUBMODULE) and getattr(module, SUBMODULE) is not None:
                module.q_proj.weight.data *= factor
                if module.q_proj.bias is not None:
                    module.q_proj.bias.data *= factor
        scales = {getattr(part, SUBMODULE).scale for part in model.modules() if hasattr(part, SUBMODULE)}
        assert all(scale is None or scale.item() == pytest.approx(8**-0.5) for scale in scales)  # heads of width 8
        outputs.append(real_part(model(**batch).logits, batch).detach())
    torch.testing.assert_close(*outputs, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("norm", ["none", "layer_norm"])
def test_a_cosine_is_that_of_the_normalised_states(norm):
    """As in the module of this library, where the norm comes first."""
    fields = {"score": "cosine", "scale": 2.0, "query_key_norm": norm}
    own, module = MultiHeadAttention(32, 4, fields), torch.nn.Module().eval()
    states = torch.randn(2, 5, 32)
    query, key, value = (
        part(states).unflatten(-1, (4, 8)).transpose(1, 2) for part in (own.q_proj, own.k_proj, own.v_proj)
    )
    attention = InterfaceAttention(fields, head_dim=8)
    output, _ = attention(module, query, key, value, None, scaling=8**-0.5, is_causal=False)
    torch.testing.assert_close(own.out_proj(output.flatten(2)), own(states)[0])


def test_a_fixed_scale_of_queries_with_a_learned_one_is_refused():
    register_attention("fixed_scale_attention", "relu-vit", scale=0.7)
    config = transformers.TimesFmConfig(hidden_size=32, intermediate_size=48, num_hidden_layers=1, head_dim=8)
    with pytest.raises(ValueError, match="scale of its queries"):
        transformers.TimesFmModel._from_config(config, attn_implementation="fixed_scale_attention")


def test_a_compiler_takes_an_exchanged_model_whole():
    torch._dynamo.reset()
    model, batch = exchange_attention(build("llama", "eager"), "rela-g"), inputs("llama")
    found = torch.compile(model, fullgraph=True, backend="aot_eager")(**batch, use_cache=False).logits
    torch.testing.assert_close(found, model(**batch).logits, rtol=1e-4, atol=1e-4)


def test_an_attention_that_computes_softmax_by_itself_is_an_error(monkeypatch):
    model_class = transformers.PegasusXForConditionalGeneration
    config = transformers.PegasusXConfig(**SEQ2SEQ, block_size=4, num_global_tokens=2)
    ids = torch.arange(3, 11)[None]
    batch = {"input_ids": ids, "decoder_input_ids": ids[:, :3]}
    with pytest.raises(ValueError, match="computes softmax"):
        model_class._from_config(copy.deepcopy(config), attn_implementation="relu_attention")
    monkeypatch.delitem(attentions.REFUSED, "pegasus_x")  # as of a type that nobody has tried
    model = model_class._from_config(copy.deepcopy(config), attn_implementation="relu_attention").eval()
    exchanged = exchange_attention(model_class(copy.deepcopy(config)), "rela-g").eval()
    for one in (model, exchanged):
        for _ in range(2):
            with pytest.raises(ValueError, match="PegasusXGlobalLocalAttention"):
                one(**batch)
    # of what does not run, and of other models meanwhile, nothing is said
    with torch.no_grad():
        encoded = model_class(copy.deepcopy(config)).get_encoder()(ids)
    model(encoder_outputs=encoded, decoder_input_ids=ids[:, :3])
    model.set_attn_implementation("eager")
    model(**batch)
    restore_attention(exchanged)(**batch)
    # only the first forward is watched
    assert not model._forward_pre_hooks
    assert not model._forward_hooks
    assert not torch.overrides._get_current_function_mode_stack()


def test_what_is_restored_has_the_attention_of_its_class(tmp_path):
    sizes = {**LLAMA, "num_local_experts": 2, "num_experts_per_tok": 1, "head_dim": 8}
    torch.manual_seed(0)
    model = transformers.GptOssForCausalLM(transformers.GptOssConfig(**sizes)).eval()
    wanted = logits(model)
    exchange_attention(model, {"activation": "softmax1"}).save_pretrained(tmp_path)
    opened = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    torch.testing.assert_close(logits(restore_attention(opened)), wanted)


def test_no_name_at_all_is_the_saved_one(tmp_path):
    """TRL and `transformers serve` pass None where nobody chose an attention."""
    named, exchanged = build("llama", "relu_attention"), exchange_attention(build("llama", "sdpa"), "relu-vit")
    named.save_pretrained(tmp_path / "named")
    exchanged.save_pretrained(tmp_path / "exchanged")
    assert json.loads((tmp_path / "named" / "config.json").read_text())["attn_implementation"] == "relu_attention"
    for opener in (AutoModelForCausalLM, LlamaForCausalLM):
        assert torch.equal(logits(opener.from_pretrained(tmp_path / "named", attn_implementation=None)), logits(named))
    config = transformers.AutoConfig.from_pretrained(tmp_path / "named", attn_implementation=None)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "named", config=config, attn_implementation=None)
    assert torch.equal(logits(model), logits(named))
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "exchanged", attn_implementation=None)
    assert torch.equal(logits(model), logits(exchanged))
    # a name that was taken out of the file is no choice
    text = json.loads((tmp_path / "named" / "config.json").read_text())
    del text["attn_implementation"]
    (tmp_path / "named" / "config.json").write_text(json.dumps(text))
    with pytest.raises(ValueError, match="saved with an attention by name"):
        AutoModelForCausalLM.from_pretrained(tmp_path / "named")


def test_nothing_but_its_own_methods_takes_an_attention_off_a_model():
    model = build("llama", "relu_attention")
    wanted, config = logits(model), model.config
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


def test_parts_of_a_configuration_keep_their_attentions():
    names = {"text_config": "relu_attention", "vision_config": "sdpa"}
    model = llava(attn_implementation=names)
    wanted, config = logits(model), model.config
    config._attn_implementation = "eager"
    assert config.text_config._attn_implementation == "relu_attention"
    config.vision_config._attn_implementation = "sdpa"
    assert torch.equal(logits(model), wanted)
    again = type(config).from_dict(config.to_dict())
    assert again.text_config._attn_implementation == "relu_attention"
    assert again.vision_config._attn_implementation != "relu_attention"
    around = transformers.LlavaConfig(text_config=config.text_config, vision_config=config.vision_config)
    assert around.text_config._attn_implementation == "relu_attention"


@pytest.mark.parametrize("attention", ["relu_attention", "exchanged"])
def test_a_configuration_that_is_copied_as_a_dict_keeps_its_attention(attention):
    model = build("llama", "sdpa" if attention == "exchanged" else attention)
    if attention == "exchanged":
        exchange_attention(model, "relu-vit")
    for config in (type(model.config).from_dict(model.config.to_dict()), type(model.config)(**model.config.to_dict())):
        assert config._attn_implementation == model.config._attn_implementation
        if attention == "exchanged":
            with pytest.raises(ValueError, match="exchange"):
                AutoModelForCausalLM.from_config(config)
    assert "attn_implementation" not in build("llama", "sdpa").config.to_dict()


@pytest.mark.parametrize("attention", ["relu_attention", "exchanged"])
def test_weights_that_are_asked_for_are_those_of_the_attention(attention, tmp_path, monkeypatch):
    # Whisper's own code calls `generate` in a deprecated way, which is no fault of ours
    monkeypatch.setattr(logging.getLogger("transformers.generation.utils"), "propagate", False)
    model = build("whisper", "sdpa" if attention == "exchanged" else attention)
    if attention == "exchanged":
        exchange_attention(model, "relu-vit")
    wanted, features = logits(model, "whisper"), inputs("whisper")["input_features"][:1]
    settings = {"no_timestamps_token_id": 50, "alignment_heads": [[0, 0]], "is_multilingual": False, "eos_token_id": 2}
    for name, value in settings.items():
        setattr(model.generation_config, name, value)
    model.generate(features, return_token_timestamps=True, num_frames=32, max_new_tokens=4)  # assigns "eager"
    assert torch.equal(logits(model, "whisper"), wanted)
    model.config.output_attentions = True
    weights = model(**inputs("whisper")).cross_attentions
    assert any((layer == 0).any() for layer in weights)
    if attention != "exchanged":
        model.save_pretrained(tmp_path)
        again = type(model).from_pretrained(tmp_path, output_attentions=True).eval()
        torch.testing.assert_close(again(**inputs("whisper")).cross_attentions, weights)
