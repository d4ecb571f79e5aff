"""How fast VQA models of full size score, beside the algorithm of the released scripts and what the machine can do.

The weights are random, and nothing is fetched: torch, transformers, numpy and Pillow are enough, but for the columns of
a sweep from S3, which take what the tests take.
"""
