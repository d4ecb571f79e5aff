"""Computes missing cells, either on Ray or in this process."""
