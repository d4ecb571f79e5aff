"""Model families, finding and checking of checkpoints, and the calls that metrics make to models."""
