"""Reads and decodes a row's images within limits, samples videos, and preprocesses images once for all questions."""
