"""Tables from tables: metrics, stages, statistics and reports, in plain Python that needs neither Ray nor storage."""
