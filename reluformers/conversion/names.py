"""Names of weights: those of other models and ours, in tables that are read in both directions."""

import re
from collections.abc import Mapping

# Entries match whole parts of names between dots; if two match, the longer one holds.
SEQ2SEQ_NAMES = {
    "final_logits_bias": "lm_head.bias",
    "layernorm_embedding": "embedding_norm",
    "self_attn_layer_norm": "self_attn_norm",
    "encoder_attn_layer_norm": "cross_attn_norm",
    "encoder_attn": "cross_attn",
    "final_layer_norm": "mlp_norm",
    "fc1": "mlp.fc1",
    "fc2": "mlp.fc2",
    "layer_norm": "norm",
}
SHARED_NAMES = {"shared": "encoder.embed_tokens"}
# Files have these names, whatever the modules are called.
VIT_NAMES = {
    "embeddings.patch_embeddings.projection": "embeddings.projection",
    "encoder.layer": "layers",
    "attention.attention.query": "self_attn.q_proj",
    "attention.attention.key": "self_attn.k_proj",
    "attention.attention.value": "self_attn.v_proj",
    "attention.output.dense": "self_attn.out_proj",
    "intermediate.dense": "mlp.fc1",
    "output.dense": "mlp.fc2",
    "layernorm_before": "self_attn_norm",
    "layernorm_after": "mlp_norm",
    "layernorm": "norm",
}
DEIT_NAMES = {**VIT_NAMES, "deit": "vit", "distillation_token": "register_tokens"}
TIMM_NAMES = {
    "cls_token": "vit.embeddings.cls_token",
    "reg_token": "vit.embeddings.register_tokens",
    "dist_token": "vit.embeddings.register_tokens",
    "pos_embed": "vit.embeddings.position_embeddings",
    "patch_embed.proj": "vit.embeddings.projection",
    "blocks": "vit.layers",
    "norm1": "self_attn_norm",
    "norm2": "mlp_norm",
    "attn.qkv": "self_attn.qkv_proj",
    "attn.proj": "self_attn.out_proj",
    "norm": "vit.norm",
    "fc_norm": "vit.norm",
    "head": "classifier",
}


def rename(name: str, table: Mapping[str, str]) -> str:
    """A weight's name with every part that the table has replaced, once each."""
    parts = "|".join(map(re.escape, sorted(table, key=len, reverse=True)))
    return re.sub(rf"(?<![^.])(?:{parts})(?![^.])", lambda match: table[match[0]], name)


def reversed_table(table: Mapping[str, str]) -> dict[str, str]:
    """The table for the way back."""
    return {ours: theirs for theirs, ours in table.items()}
