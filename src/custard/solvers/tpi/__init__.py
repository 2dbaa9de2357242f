"""Tree policy iteration. Read in this order: `search` (settings, rounds, judging), `candidates` (propose, polish,
shrink, confirm), `arena` (where trees run, budget, time limit), `simulate` (episodes, action values), `expert_start`
(trees of an expert's policy), `table_model` (few states: counted transitions, exact returns)."""

from custard.solvers.tpi.search import PRESETS, Settings, solve

__all__ = ["PRESETS", "Settings", "solve"]
