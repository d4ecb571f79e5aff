"""Reads, checks, decodes and preprocesses the images of a table's rows, and samples frames from videos."""
