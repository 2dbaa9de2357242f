"""Iterative bounding MDPs: the paper's section of that name."""
