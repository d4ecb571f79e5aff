"""A browser of a store: its runs, their rows, questions and images, as pages for this machine alone."""
