"""Reads and decodes images of table rows within limits, samples videos, and preprocesses images for all questions."""
