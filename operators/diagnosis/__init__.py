"""What makes a metric good or not, told of a run: what it goes with, what it asks, and what it does without."""
