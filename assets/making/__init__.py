"""Code that makes the embedded benchmarks of coloured shapes, and trains the embedded models on them.

It is not included in the wheel.
"""
