"""Releases on the Hub: checked, in one commit, with a tag; and the demo Space beside them."""
