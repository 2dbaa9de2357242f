"""Tree policy iteration. Read in this order: `search` (settings, rounds, judging), `candidates` (propose, polish,
shrink, confirm_perfect), `arena` (where trees run, budget, time limit), `simulate` (episodes, action values),
`table_expert` (trees of a table's policy), `table_model` (few states: counted transitions, exact returns)."""

from custard.solvers.tpi.search import PRESETS, Settings, budget_for_time, searches_directly, solve

__all__ = ["PRESETS", "Settings", "budget_for_time", "searches_directly", "solve"]
