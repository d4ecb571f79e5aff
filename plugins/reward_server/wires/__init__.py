"""How trainers ask for rewards: one file per wire, and the table of them."""
