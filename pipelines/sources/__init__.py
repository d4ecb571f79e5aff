"""Where a benchmark's prompts and images come from, as shards."""
