"""Statistics of ratings and scores: pure functions over NumPy arrays and pandas frames."""
