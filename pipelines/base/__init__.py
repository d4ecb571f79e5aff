"""What every part of the pipelines stands on: storage, tables of any format, the cluster, logs and exit codes."""
