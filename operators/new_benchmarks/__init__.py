"""How a benchmark's prompts are made: tagged, written from templates, balanced, without near-duplicates, counted."""
