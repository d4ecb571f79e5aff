"""Request formats of trainers ("wires"): one file each, and a table of all of them."""
