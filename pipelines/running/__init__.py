"""How missing cells are computed on Ray."""
