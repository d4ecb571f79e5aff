"""Turning scores into training data: rewards and advantages, selection of examples, and one file per format."""
