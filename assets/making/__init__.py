"""Code that makes the embedded world: the shapes world and the recipes of its tiny checkpoints.

The wheel leaves it out.
"""
