"""Meta-evaluation of metrics by people's judgements: protocols, releases, and reproduction of published numbers."""
