"""Turns the tables of a run into a one-page report: conclusions in words, then charts, tables and images."""
