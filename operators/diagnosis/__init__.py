"""Diagnosis of a run's metrics: correlations, questions, answers, and the effects of missing inputs."""
