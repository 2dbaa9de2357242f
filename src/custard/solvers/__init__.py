"""From an environment to a tree. One folder per algorithm, whose `__init__` says in which order to read it:

tpi        tree policy iteration, the default
direct     direct search over trees, on their returns alone
mfec       CUSTARD by episodic control: Q over bounds in a table
dqn        CUSTARD by deep Q-learning
ppo        CUSTARD by proximal policy optimisation
common     what carries no algorithmic choice
reference  the paper's two agents, merged agent and omniscient Q-function, in tables
"""
