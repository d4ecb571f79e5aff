"""Finds, downloads and checks the files of models."""
