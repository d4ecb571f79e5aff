"""Engines of chat models: conversations as tokens, replies that fit a schema, thinking, and vLLM."""
