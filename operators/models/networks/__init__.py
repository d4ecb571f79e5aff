"""Networks implemented with torch, one module per kind, and the code they share."""
