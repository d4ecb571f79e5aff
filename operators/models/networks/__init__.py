"""Networks on torch, one module for each kind, and their common parts."""
