"""Experts on the base MDP. Read `expert` (what one is) and `kinds` (one by name), then a kind: `dqn` (trained on steps
of `transitions`), `linear` (by `direct_search` and `augmented_random_search` on the return), `backward_induction`
(computed), `sb3` (from a file). `numbered_actions` is for vector actions."""
