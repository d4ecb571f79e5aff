"""Readers for published human ratings, one file per data set."""
