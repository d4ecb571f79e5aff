"""The configuration of a sweep, the plan with all of its cells, and the cost of its model calls."""
