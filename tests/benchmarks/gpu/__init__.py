"""Compares the speed of full-size VQA models with the released scripts' algorithm and with the machine's limits.

The weights are random and nothing is downloaded: torch, transformers, numpy and Pillow are enough. Only the columns
about a sweep from S3 need the packages that the tests need.
"""
