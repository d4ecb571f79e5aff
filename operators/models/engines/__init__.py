"""Engines for chat models: tokenizes conversations, enforces reply schemas, handles thinking, and runs vLLM."""
