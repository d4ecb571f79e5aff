"""The embedded pack: the shapes world and the recipes of its tiny checkpoints."""
