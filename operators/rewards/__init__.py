"""Scores to training data: rewards and advantages, which images make an example, and one file per format."""
