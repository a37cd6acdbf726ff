"""What a user of the Hub meets: model cards, their checks, and everything around a published model."""
