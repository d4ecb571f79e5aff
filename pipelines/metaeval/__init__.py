"""Evaluates metrics against human judgements: protocols, releases, and reproduction of published numbers."""
