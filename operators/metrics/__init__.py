"""One file per metric: its templates, its options and its score, free of models and of I/O."""
