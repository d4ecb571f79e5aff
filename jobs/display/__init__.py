"""Terminal output of the jobs."""
