"""What a run's scores say: means with their intervals, comparisons of generators, and of runs."""
