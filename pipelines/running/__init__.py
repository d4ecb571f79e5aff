"""Computes missing cells, on Ray or in this process."""
