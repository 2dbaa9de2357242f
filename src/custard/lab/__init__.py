"""Running, judging and keeping: sources of environments, evaluation, run directories, methods by name."""
