"""What the attention of a trained model does: zeros, null rows, entropy."""
