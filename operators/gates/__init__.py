"""Gates: rules that a run must pass, each judged by what so many prompts can tell."""
