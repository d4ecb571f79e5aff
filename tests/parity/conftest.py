"""The same tiny checkpoints as the operators' tests."""

from tests.operators.conftest import checkpoints, likelihood, similarity

__all__ = ["checkpoints", "likelihood", "similarity"]
