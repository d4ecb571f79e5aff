"""Whether generated images match their prompts, at the scale of whole sweeps.

In a checkout the packages below are links to the folders beside this one; an installed wheel holds them here. They are
imported by this name alone, so that each module exists once.
"""
