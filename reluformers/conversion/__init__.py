"""Models of transformers and timm become ours and go back, and their attention is exchanged for another."""
