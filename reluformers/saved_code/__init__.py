"""The code that goes into a saved folder, and the registration of the families with transformers."""
