"""A sweep's configuration, the plan that names its cells, and what its model calls cost."""
