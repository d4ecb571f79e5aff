"""The report of a run: from its tables to one page that answers in words first, then in charts, tables and images."""
