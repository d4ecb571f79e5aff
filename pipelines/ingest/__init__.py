"""Ingests image files, tables and tars into the tables that sweeps read."""
