"""Foundations of all pipelines: storage, tables of any format, the cluster, logs and exit codes."""
