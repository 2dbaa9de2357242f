"""What solvers share that carries no algorithmic choice."""
