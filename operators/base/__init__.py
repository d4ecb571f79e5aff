"""Foundations of all other rooms: errors, tables and their rows, extensions, sentences, counts."""
