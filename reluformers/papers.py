"""The papers behind the models, and which of their equations an attention computes."""

from dataclasses import dataclass

from transformers import PreTrainedConfig

from .configuration.configuration_attention import AttentionConfig


@dataclass(frozen=True)
class Paper:
    """A paper on arXiv.

    Args:
        key: of its BibTeX entry.
        title, authors, year: as on its first page; authors as BibTeX joins them.
        arxiv: its number.
    """

    key: str
    title: str
    authors: str
    year: int
    arxiv: str

    @property
    def link(self) -> str:
        """Markdown link; the Hub makes its `arxiv:` tag of it."""
        return f"[{self.title}](https://arxiv.org/abs/{self.arxiv})"

    @property
    def bibtex(self) -> str:
        """Entry of a bibliography."""
        return (
            f"@misc{{{self.key},\n"
            f"  title         = {{{self.title}}},\n"
            f"  author        = {{{self.authors}}},\n"
            f"  year          = {{{self.year}}},\n"
            f"  eprint        = {{{self.arxiv}}},\n"
            "  archivePrefix = {arXiv}\n"
            "}"
        )


@dataclass(frozen=True)
class Source:
    """Where an attention comes from: a paper and the place in it."""

    paper: Paper
    place: str


TRANSFORMER = Paper(
    "vaswani2017attention",
    "Attention Is All You Need",
    "Vaswani, Ashish and Shazeer, Noam and Parmar, Niki and Uszkoreit, Jakob and Jones, Llion and Gomez, Aidan N. and "
    "Kaiser, Lukasz and Polosukhin, Illia",
    2017,
    "1706.03762",
)
VISION_TRANSFORMER = Paper(
    "dosovitskiy2020image",
    "An Image is Worth 16x16 Words: Transformers for Image Recognition at Scale",
    "Dosovitskiy, Alexey and Beyer, Lucas and Kolesnikov, Alexander and Weissenborn, Dirk and Zhai, Xiaohua and "
    "Unterthiner, Thomas and Dehghani, Mostafa and Minderer, Matthias and Heigold, Georg and Gelly, Sylvain and "
    "Uszkoreit, Jakob and Houlsby, Neil",
    2020,
    "2010.11929",
)
RELUFORMER = Paper(
    "shen2023study",
    "A Study on ReLU and Softmax in Transformer",
    "Shen, Kai and Guo, Junliang and Tan, Xu and Tang, Siliang and Wang, Rui and Bian, Jiang",
    2023,
    "2302.06461",
)
RELA = Paper(
    "zhang2021sparse",
    "Sparse Attention with Linear Units",
    "Zhang, Biao and Titov, Ivan and Sennrich, Rico",
    2021,
    "2104.07012",
)
QKNORM = Paper(
    "henry2020query",
    "Query-Key Normalization for Transformers",
    "Henry, Alex and Dachapally, Prudhvi Raj and Pawar, Shubham and Chen, Yuxuan",
    2020,
    "2010.04245",
)
RELU_VIT = Paper(
    "wortsman2023replacing",
    "Replacing softmax with ReLU in Vision Transformers",
    "Wortsman, Mitchell and Lee, Jaehoon and Gilmer, Justin and Kornblith, Simon",
    2023,
    "2309.08586",
)
SPARSEMAX = Paper(
    "martins2016softmax",
    "From Softmax to Sparsemax: A Sparse Model of Attention and Multi-Label Classification",
    "Martins, Andr{\\'e} F. T. and Astudillo, Ram{\\'o}n Fernandez",
    2016,
    "1602.02068",
)
ENTMAX = Paper(
    "peters2019sparse",
    "Sparse Sequence-to-Sequence Models",
    "Peters, Ben and Niculae, Vlad and Martins, Andr{\\'e} F. T.",
    2019,
    "1905.05702",
)
SOFTPLUS = Paper(
    "gao2025softplus",
    "Softplus Attention with Re-weighting Boosts Length Extrapolation in Large Language Models",
    "Gao, Bo and Spratling, Michael W.",
    2025,
    "2501.13428",
)

# preset → paper and place
_PRESETS = {
    "softmax": Source(TRANSFORMER, "equation 1"),
    "reluformer": Source(RELUFORMER, "equation 6"),
    "relu": Source(RELUFORMER, "table 2, ReLU in place of softmax and nothing else"),
    "rela": Source(RELA, "equations 3 and 4"),
    "rela-i": Source(RELA, "equations 3 and 4, with a random initial gain"),
    "rela-g": Source(RELA, "equations 3 and 5, the gated norm"),
    "qknorm": Source(QKNORM, "equations 2 to 5"),
    "relu-vit": Source(RELU_VIT, "ReLU divided by the sequence length"),
    "relu-sum": Source(SOFTPLUS, "a positive activation and the sum of the row, here with ReLU"),
    "sparsemax": Source(SPARSEMAX, "sparsemax in place of softmax"),
    "entmax15": Source(ENTMAX, "1.5-entmax in place of softmax"),
}
_RELU_OF_IMAGES = Source(RELU_VIT, "figures 2 and 3, the exponent of the sequence length at 0")
# preset and model_type → paper and place, where a family takes a preset from another paper
_OF_FAMILIES = {
    ("relu", "vision_transformer"): _RELU_OF_IMAGES,
    ("relu", "relu_vit"): _RELU_OF_IMAGES,
}


def attention_source(attention: AttentionConfig, config: PreTrainedConfig) -> Source:
    """Paper and place of an attention; of one that is no preset, those of the preset that its family starts from.

    Args:
        attention: of one site.
        config: of the model.
    """
    preset = attention.preset_name
    if preset is not None:
        return _OF_FAMILIES.get((preset, config.model_type), _PRESETS[preset])
    source = _PRESETS[type(config).attention]
    return Source(source.paper, f"a variant of {source.place}; its formula is below")


def formula(attention: AttentionConfig, head_dim: int) -> list[str]:
    """The three lines of an attention: score, weight and output.

    Args:
        attention: what is computed.
        head_dim: d, the width of a head.

    Returns:
        Lines in plain text, with the values of this attention.
    """
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
    value, factor = f"{attention.initial_scale(head_dim):.4g}", _FORMS[attention.scale_form]
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
    output, definitions = f"Σ_j s_ij {value}", []
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
