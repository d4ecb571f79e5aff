"""Published prompts that the judges can send, one benchmark per file. Checkouts are parsed but never run."""
