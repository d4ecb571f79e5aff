"""Features outside the core. Each folder is a plugin: its code, configuration, README and tests (docs/plugins.md)."""
