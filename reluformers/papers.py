"""The papers behind the models, and which of their equations an attention computes."""

import re
from importlib.resources import files
from typing import NamedTuple

from transformers import PreTrainedConfig

from .configuration.configuration_attention import AttentionConfig


class Paper(NamedTuple):
    """A paper on arXiv, with its entry in model_cards/papers.bib."""

    title: str
    arxiv: str
    bibtex: str

    @property
    def link(self) -> str:
        """Markdown link; the Hub makes its `arxiv:` tag of it."""
        return f"[{self.title}](https://arxiv.org/abs/{self.arxiv})"


class Source(NamedTuple):
    """Where an attention comes from: a paper and the passage in it."""

    paper: Paper
    passage: str


def _read_papers() -> dict[str, Paper]:
    text = (files("reluformers.model_cards") / "papers.bib").read_text(encoding="utf-8")
    papers = {}
    for entry in text.strip().split("\n\n"):
        fields = dict(re.findall(r"^  (\w+) += \{(.*)\}", entry, re.MULTILINE))
        key = entry.partition("{")[2].partition(",")[0]
        papers[key] = Paper(fields["title"], fields["eprint"], entry)
    return papers


PAPERS = _read_papers()
# For each preset, the paper and the passage that defines it.
_PRESETS = {
    "softmax": Source(PAPERS["vaswani2017attention"], "equation 1"),
    "reluformer": Source(PAPERS["shen2023study"], "equation 6"),
    "relu": Source(PAPERS["shen2023study"], "table 2, ReLU in place of softmax and nothing else"),
    "rela": Source(PAPERS["zhang2021sparse"], "equations 3 and 4"),
    "rela-i": Source(PAPERS["zhang2021sparse"], "equations 3 and 4, with a random initial gain"),
    "rela-g": Source(PAPERS["zhang2021sparse"], "equations 3 and 5, the gated norm"),
    "qknorm": Source(PAPERS["henry2020query"], "equations 2 to 5"),
    "relu-vit": Source(PAPERS["wortsman2023replacing"], "ReLU divided by the sequence length"),
    "relu-sum": Source(PAPERS["gao2025softplus"], "a positive activation and the sum of the row, here with ReLU"),
    "sparsemax": Source(PAPERS["martins2016softmax"], "sparsemax in place of softmax"),
    "entmax15": Source(PAPERS["peters2019sparse"], "1.5-entmax in place of softmax"),
}
_RELU_OF_IMAGES = Source(PAPERS["wortsman2023replacing"], "figures 2 and 3, the exponent of the sequence length at 0")
# Some families take a preset from another paper.
_OF_FAMILIES = {
    ("relu", "vision_transformer"): _RELU_OF_IMAGES,
    ("relu", "relu_vit"): _RELU_OF_IMAGES,
}


def attention_source(attention: AttentionConfig, config: PreTrainedConfig) -> Source:
    """Paper and passage of an attention; of one that is no preset, those of the preset that its family starts from."""
    preset = attention.preset_name
    if preset is not None:
        return _OF_FAMILIES.get((preset, config.model_type), _PRESETS[preset])
    source = _PRESETS[type(config).attention]
    return Source(source.paper, f"a variant of {source.passage}; its formula is below")


def formula(attention: AttentionConfig, head_dim: int) -> list[str]:
    """The three lines of an attention in plain text, with its values: score, weight and output."""
    return [
        f"score   z_ij = {_score(attention, head_dim)}",
        f"weight  s_ij = {_weight(attention, head_dim)}",
        f"output  o_i  = {_output(attention)}",
    ]


_FORMS = {"constant": "", "log_length": " · log n_i", "sqrt_log_length": " · √(2 log n_i / {head_dim})"}
_GATES = {"linear": " ⊙ (W x_i)", "silu": " ⊙ silu(W x_i)", "sigmoid": " ⊙ σ(W x_i)"}
_NORMS = {"rms_norm": "RMSNorm", "layer_norm": "LayerNorm"}


def _score(attention: AttentionConfig, head_dim: int) -> str:
    query, key = ("LayerNorm(q_i)", "LayerNorm(k_j)") if attention.query_key_norm == "layer_norm" else ("q_i", "k_j")
    product = f"cos({query}, {key})" if attention.score == "cosine" else f"{query}·{key}"
    value = f"{attention.initial_scale(head_dim):.4g}"
    factor = _FORMS[attention.scale_form]
    if attention.learned_scale:
        return f"a{factor} · {product},  a learned, {value} at the start"
    if attention.score == "dot" and attention.scale is None:
        return f"{factor.removeprefix(' · ')}{' · ' if factor else ''}{product} / √{head_dim}"
    return f"{value}{factor} · {product}"


def _weight(attention: AttentionConfig, head_dim: int) -> str:
    threshold = ""
    if attention.learned_threshold or attention.threshold:
        value = "θ" if attention.learned_threshold else f"{attention.threshold:g}"
        threshold = f" − {value}{_FORMS[attention.threshold_form].format(head_dim=head_dim)}"
    weight = f"{attention.activation}(z_ij{threshold})"
    if attention.normalizer == "sum":
        return f"{weight} / Σ_k {weight.replace('z_ij', 'z_ik')}"
    exponent = "α" if attention.learned_length_exponent else f"{attention.length_exponent:g}"
    factors = [] if attention.length_coefficient == 1 else [f"{attention.length_coefficient:.4g}"]
    if exponent != "0":
        factors.append("n_i" if exponent == "1" else f"n_i^{exponent}")
    if factors:
        weight += f" / ({' · '.join(factors)})" if len(factors) > 1 else f" / {factors[0]}"
    needs_count = factors or "n_i" in weight or attention.scale_form != "constant"
    return f"{weight},  n_i the number of keys that i sees" if needs_count else weight


def _output(attention: AttentionConfig) -> str:
    value = "v_j/‖v_j‖" if attention.value_norm == "l2" else "v_j"
    output = f"Σ_j s_ij {value}"
    definitions = []
    if attention.exclusive_output:
        definitions = [f"t = {output} and v̂_i = v_i/‖v_i‖ of each head"]
        output = "t − (t·v̂_i) v̂_i"
    if attention.output_norm != "none":
        norm = _NORMS[attention.output_norm.removeprefix("gated_")]
        if attention.output_norm.startswith("gated_"):
            definitions.insert(0, f"u = {output}")
            output = f"σ(w ⊙ u) ⊙ g ⊙ {norm}(u)"
        else:
            output = f"g ⊙ {norm}({output})"
    if attention.output_gate != "none":
        output = f"({output}){_GATES[attention.output_gate]}"
    return ",  ".join([output, *definitions])
