"""What is computed: cells, the store, the runner, and sweeps as compositions of operators."""
