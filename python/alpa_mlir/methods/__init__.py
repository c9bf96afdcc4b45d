"""How to parallelize: what the user decides, and what is left to the search."""
