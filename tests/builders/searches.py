"""Models and sources to search with."""

import torch

from builders.models import build_model

VOCABULARY, END = 40, 2


def trained_like(preset="relu", **fields):
    """A model that ends every fifth prefix, so some sentences soon and others late."""
    model = build_model(preset, vocab_size=VOCABULARY, output_bias=True, **fields).eval()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
        prefixes = torch.randint(3, VOCABULARY, (64, 9), generator=generator)
        logits = model(**draw_sources(64), decoder_input_ids=prefixes).logits.flatten(0, 1)
        end, others = logits[:, END], logits.index_fill(1, torch.tensor(END), -torch.inf).amax(1)
        model.lm_head.bias[END] += (others - end).quantile(0.2)
    return model


def draw_sources(rows=7, seed=0):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 9, (rows,), generator=generator)
    input_ids = torch.randint(3, VOCABULARY, (rows, 9), generator=generator)
    mask = torch.arange(9) <= lengths[:, None]
    return {"input_ids": input_ids.masked_fill(~mask, 0), "attention_mask": mask.long()}
