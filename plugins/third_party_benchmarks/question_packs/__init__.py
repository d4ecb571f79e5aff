"""Question packs: one file for packs of like layouts."""
