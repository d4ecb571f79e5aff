"""What makes the embedded pack: the shapes world and the recipes of its tiny checkpoints. No wheel brings it."""
