"""What learns with networks stands on. In reading order:

networks     multilayer perceptrons as tuples of arrays, for JAX, NumPy and compiled loops
descent      Adam over minibatches, in one compiled JAX call
replay       the most recent transitions
sac          soft actor-critic for any actor
checkpoints  networks and optimiser states as named arrays
"""
