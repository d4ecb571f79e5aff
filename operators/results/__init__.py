"""Results of a run: means with intervals, comparisons of generators, and comparisons of runs."""
