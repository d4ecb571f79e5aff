"""One file per backend family; each offers some of the four model calls that metrics are made of."""
