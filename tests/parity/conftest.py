"""Fixtures of the operators' tests: the same tiny checkpoints."""

from tests.operators.fixtures import checkpoints, likelihood, similarity

__all__ = ["checkpoints", "likelihood", "similarity"]
