"""HTTP servers of pages and services: addresses, access control and size limits."""
