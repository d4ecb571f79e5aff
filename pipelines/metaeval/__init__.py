"""Evaluates metrics against people's judgements: protocols, releases, and reproduction of published numbers."""
