"""The reward service: metrics online, for trainers."""
