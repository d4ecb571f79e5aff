"""Judging metrics: tables of ratings and scores in, statistics with their conventions out."""
