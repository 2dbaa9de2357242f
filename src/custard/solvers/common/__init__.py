"""What solvers share that carries no algorithmic choice:

selection      judges extracted trees on episodes and keeps the best
race, paired   policies compared on common episodes: many, two
mutations      small random changes to trees
evolve         all numbers of a tree moved at once by direct search
linear_trees   trees over weighted sums and with linear leaves
network_trees  trees extracted from a network over bounds
level_policy   a policy over bounds whose decisions come from nodes of its own
bounds_survey  where features without bounds lie, and how finely to split them
key_table      from keys to rows: exact hits by hash, nearest neighbours otherwise
action_memory  the memories of episodic control, one per action
checkpoint     arrays and dataclasses as checkpoints
"""
