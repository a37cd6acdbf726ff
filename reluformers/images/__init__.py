"""Image classification: from labelled images to a trained model and its scores."""
