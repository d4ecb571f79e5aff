"""Readers of published human ratings, one file per data set."""
