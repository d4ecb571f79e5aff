"""The same tiny checkpoints as the operators' tests."""

from tests.operators.fixtures import checkpoints, likelihood, similarity

__all__ = ["checkpoints", "likelihood", "similarity"]
