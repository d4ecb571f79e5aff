"""Code that makes the embedded benchmark of shapes, and trains the embedded models.

It is not included in the wheel.
"""
