"""Benchmarks made of prompts: read, tagged, written, drawn and counted."""
