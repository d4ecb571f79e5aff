"""Foundations of all pipelines: storage, tables in any format, the cluster, logs and exit codes."""
