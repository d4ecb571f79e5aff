"""Models: families, how checkpoints are found and checked, and the calls that metrics make of them."""
