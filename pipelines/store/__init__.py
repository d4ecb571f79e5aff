"""Cells: their keys, the plan of them, the store that contains them and the runs made of them."""
