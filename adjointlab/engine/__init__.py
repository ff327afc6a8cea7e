"""The engine: subjects, cases, and the search that draws, runs and shrinks them."""
