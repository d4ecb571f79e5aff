"""Model families, code that finds and checks checkpoints, and the calls that metrics make to models."""
