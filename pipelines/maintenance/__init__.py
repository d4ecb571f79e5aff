"""Store maintenance: tracks the processes that use a store, decides which runs to keep, and removes unused files."""
