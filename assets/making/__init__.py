"""Code that makes the embedded benchmarks of coloured shapes, and trains the embedded models on them.

The wheel does not include this code.
"""
