"""Turns scores into training data: rewards and advantages, selection of examples, and formats for trainers."""
