"""What all other modules build on: errors, table schemas, rows, extensions, number formatting and model calls."""
