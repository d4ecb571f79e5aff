"""How folders of image files tell their prompts: one file per layout, and the table of them."""
