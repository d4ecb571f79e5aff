"""Fixtures for the tiny checkpoints that the tests of operators also use."""

from tests.operators.fixtures import checkpoints, likelihood, similarity

__all__ = ["checkpoints", "likelihood", "similarity"]
