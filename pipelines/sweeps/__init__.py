"""Plans and computes sweeps, and writes them as runs."""
