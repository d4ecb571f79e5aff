"""What generators leave behind, made into the tables that sweeps read."""
