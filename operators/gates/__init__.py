"""Gates: rules that a run must pass, tested with the statistical power that its prompts allow."""
