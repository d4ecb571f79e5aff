"""Everything that needs storage, cells or Ray: the store, the runner, and pipelines built from operators."""
