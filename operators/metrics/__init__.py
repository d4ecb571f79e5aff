"""Metrics: their options, prompt templates and scores. They load no model and read no images."""
