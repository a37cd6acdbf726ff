"""The demo Space: a program of its own. Its files import each other by their names and need no installed library."""
