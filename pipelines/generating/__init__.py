"""Pictures of a benchmark's prompts, made here by a generator."""
