"""What runs a chat model: conversations as tokens, replies that fit a schema, and vLLM."""
