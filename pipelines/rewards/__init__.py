"""Export of a run as training data, which is visibly incomplete until its manifest exists."""
