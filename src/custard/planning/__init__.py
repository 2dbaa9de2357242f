"""Finite MDPs: exact evaluation, optimal policies, optimal trees."""
