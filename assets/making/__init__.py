"""What makes the embedded world: the shapes world and the recipes of its tiny checkpoints. No wheel brings it."""
