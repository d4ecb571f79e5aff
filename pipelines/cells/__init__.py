"""Cells: their keys, the plan of them, the store that holds them and the runs made of them."""
