"""Engines for chat models: they tokenize conversations, enforce reply schemas, handle thinking, and run vLLM."""
