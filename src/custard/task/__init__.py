"""What is to be solved, and how it is stepped and judged. In reading order:

source             an id, an environment or a function -> `Source`, which makes environments
guard              a user's environment, whose errors become one line
observations       what is wrong with an observation that its space does not declare
history            environments whose past observations and actions are features
probe              one random episode: how episodes end, how large rewards are
problem            `Problem`, what a method receives, and `Snapshot`, what it yields
origin             the environment and the features that a tree comes from
settings           a method's settings: the preset's, then the user's
budget             a time as environment steps
recipes            environments as plain data, from which another process makes the same
policies           policies as plain data: trees and linear ones
episodes           whole episodes of a policy in one environment that Python steps
compiled_runner    the same in compiled environments
vector_episodes    the same side by side in a vector environment of the user's
chunks             requests for episodes as plain data, and what runs them elsewhere
halving            the best of candidates whose returns are noisy
ray_runner         the same episodes by the actors of a Ray cluster
workers            the same in worker processes, on all cores; `make_runner` chooses
runners            stepping: episodes of a policy, compiled or from Python
compiled_episodes  the state of compiled environments, for a solver's own compiled loop
compiled_rollouts  whole episodes of a tree in one compiled loop
linear_rollouts    the same of linear policies, and of trees with sums or linear leaves
check              what an environment promises, whether it keeps it, and how to mend it
evaluate           returns over seeded episodes, with a confidence interval
"""
