"""What a person or a scheduler runs: thin mains that parse a config, call one pipeline, print and exit."""
