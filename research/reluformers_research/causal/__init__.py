"""Causal language models of the stock Llama class, one attention a row: text, training and what is measured."""
