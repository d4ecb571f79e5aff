"""Export of a run as training data: reads scores, copies images, and writes an output that is visibly incomplete until
its manifest exists.
"""
