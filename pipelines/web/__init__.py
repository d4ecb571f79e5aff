"""HTTP servers for pages and services: addresses, access control and size limits."""
