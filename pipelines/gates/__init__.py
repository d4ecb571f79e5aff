"""Gates: a finished run judged by a file of rules."""
