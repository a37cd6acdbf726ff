"""Attention without plain softmax for the Hugging Face Hub."""
