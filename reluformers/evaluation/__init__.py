"""Scores, decoding and attention statistics of translation models and image classifiers.

`metrics` (BLEU, chrF), `decoding` (length penalty of Wu et al.), `translation` (load a model, translate texts),
`images` (load a classifier, score it) and `attention_report` (zeros, null rate, entropy) are imported one by one, so
that each costs only what it needs.
"""
