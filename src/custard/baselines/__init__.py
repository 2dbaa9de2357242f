"""Tree learners that the paper names, and a floor for all. Each is read from the file of its name:

viper           imitates an expert with CART trees; `viper_bi` with the exact expert
moet            imitates an expert with a mixture of small trees, which `mixture` fits
dagger          what both share: states that a student visits, with what the expert does there
cqi, pyeatt, cutree, utree
                learn action values in the leaves of a tree that grows
ddt, icct       learn trees by gradients: `soft_trees` holds the branches, `whole_episodes` what they learn from
growing_tree    the tree that cqi, pyeatt, cutree and utree grow, and the loop around them, `ddt` and `icct`
random_search   draws trees blindly and keeps the best
"""
