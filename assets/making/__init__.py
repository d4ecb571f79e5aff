"""Code that makes the embedded world: the shapes world, and the training of its tiny checkpoints.

It is not included in the wheel.
"""
