"""Servers of pages and services: where they listen, whom they answer, and how much they accept."""
