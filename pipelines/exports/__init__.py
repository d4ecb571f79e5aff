"""A run's scores as rows of a table that others query: Iceberg or Lance, written again only where they changed."""
