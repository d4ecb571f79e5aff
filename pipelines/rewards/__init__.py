"""A run as training data: its scores gathered, its images copied, and an output that is whole or visibly not."""
