"""Translation: from sentence pairs to a trained model, its translations and their scores."""
