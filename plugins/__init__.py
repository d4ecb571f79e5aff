"""Features outside the core. Each folder is a plugin: its code, configuration, page and tests (docs/plugins.md)."""
