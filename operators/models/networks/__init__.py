"""Networks on torch, and what they share: one file for each kind of network."""
