"""Ingestion of image files, tables and tars: converts them to the tables that sweeps read."""
