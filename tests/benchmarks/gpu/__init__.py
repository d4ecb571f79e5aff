"""The speed of full-size VQA models, compared with the released scripts' algorithm and the machine's limits.

The weights are random, and nothing is downloaded: torch, transformers, numpy and Pillow are enough. Only the columns of
a sweep from S3 need what the tests need.
"""
