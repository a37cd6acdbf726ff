"""Research on top of the library: the papers' tables, records of runs, verdicts, and analyses of attention."""
