"""Networks, replay and optimisers for whoever learns with a network."""
