"""Networks, replay memory, gradient descent and checkpoints, for whatever learns with a network."""
