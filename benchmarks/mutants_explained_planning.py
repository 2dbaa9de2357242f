"""Changes of planning that `mutants.py` makes and no test can notice, each with its reason."""

from __future__ import annotations

#: Module, change and text of the line, with the reason.
PLANNING: dict[tuple[str, str, str], str] = {
    ("planning/agreement", "1 to 2", "least, most = sizes[feature[level]], -1"): "the first rank replaces it",
    ("planning/agreement", "0 to 1",
     "return np.bitwise_and.reduce(words[index], axis=0) if len(index) else words[:1].max(axis=0) | ~np.uint64(0)"):
        "of the part for no points: any action is right there",
    ("planning/agreement", "False to True",
     "low[level], found[level], high[level], on_right[level] = 0, -1, -1, False"): "set again with the first feature",
    ("planning/agreement", "zeros to ones",
     "feature, low, found = np.zeros(depth + 1, np.int64), np.zeros(depth + 1, np.int64), "
     "np.zeros(depth + 1, np.int64)"):
        "set again when a level is entered",
    ("planning/agreement", "low to high",
     "low[level], found[level], high[level], on_right[level] = least, least - 1, most - 1, False"):
        "a cut with nothing on its left is tried as well, which finds a tree only where there is one",
    ("planning/agreement", "Lt to LtE", "if depth == 0 or work[0] < 0:"): "gives up one point earlier",
    ("planning/relaxation", "Sub to Add", "drift = max(drift, abs(mine - policy.values[s]))"):
        "the inverse is computed anew once more than needed",
    ("planning/relaxation", "condition negated", "s = n - 1 - k if sweep % 2 == 0 else k"): "the order of the states",
    **dict.fromkeys(
        [
            ("planning/evaluate", "1 to 2",
             "row = sparse.csr_array((mdp.start > 0).astype(float).reshape(1, -1))"),
            ("planning/evaluate", "1 to 2", "into = sparse.csr_array(ends.astype(float).reshape(1, -1))"),
            ("planning/reach", "1 to 2",
             "into = sparse.hstack([sparse.csr_array(goal.astype(float).reshape(1, -1)), sparse.csr_array((1, 1))])"),
        ],
        "reshape reads -2 like -1",
    ),
    ("planning/reach", "1.0 to 2.0", "return float(mdp.start @ np.clip(probability, 0.0, 1.0))"):
        "a probability exceeds 1 by rounding at most",
    ("planning/evaluate", "0 to 1", "count = p.shape[0]"): "the matrix is square",
    ("planning/evaluate", "1 to 2", "signs = np.zeros(label.max() + 1)"): "one more class that has no states",
    ("planning/evaluate", "1 to 2", "leaves = np.zeros(label.max() + 1, dtype=bool)"):
        "one more class that has no states",
    ("planning/evaluate", "zeros to ones", "signs = np.zeros(label.max() + 1)"): "only infinities are read",
    ("planning/evaluate", "1.0 to 2.0", "target[-1] = 1.0"): "only the sign of the mean reward is read",
    ("planning/evaluate", "Gt to GtE", "signs[part] = np.inf if gain > 1e-12 else -np.inf"):
        "a mean reward of exactly 1e-12 may be either",
    **dict.fromkeys(
        [
            ("planning/evaluate", change,
             "if mdp.n_states > MAX_UNFILTERED_STATES:  # of a million states a policy may visit ten")
            for change in ("Gt to GtE", "Gt to LtE", "condition negated")
        ],
        "the same visits, faster or slower",
    ),
    **dict.fromkeys(
        [
            ("planning/evaluate", change, "largest = max(1.0, float(np.abs(mdp.rewards).max()))")
            for change in ("1.0 to 2.0", "max to min")
        ],
        "an accuracy far below what returns are compared with",
    ),
    ("planning/evaluate", "0.0 to 1.0",
     "return np.where(mdp.terminal, 0.0, mdp.rewards[np.arange(mdp.n_states), choice])"):
        "nothing acts in terminal states",
    **dict.fromkeys(
        [
            ("planning/reduced", change,
             "max_sweeps = 4 * self.n + 200 if gamma == 1.0 else MAX_BOUND_WORK // max(1, len(self.successor)) + 1")
            for change in ("1 to 2", "4 to 5", "200 to 201", "max to min", "Mult to Add", "Add to Sub",
                           "FloorDiv to Mult")
        ],
        "how many sweeps are made: what they leave is a bound after each",
    ),
    **dict.fromkeys(
        [
            ("planning/reduced", change, "if most * horizon <= cutoff + 4 * self.tolerance:")
            for change in ("Mult to Add", "Add to Sub", "4 to 5", "LtE to Lt")
        ],
        "which of two bounds is returned",
    ),
    ("planning/reduced", "100000 to 100001",
     "return rising_bound(*arrays, allowed, price, values, 100_000) + self.tolerance / 10"): "the number of sweeps",
    ("planning/reduced", "10 to 11",
     "return rising_bound(*arrays, allowed, price, values, 100_000) + self.tolerance / 10"):
        "room for rounding, a little less of it",
    ("planning/reduced", "10 to 11", "values + tolerance / 10, optimum, tolerance,"):
        "room for rounding, a little less of it",
    **dict.fromkeys(
        [
            ("planning/reduced", change, "changed, residual, largest = False, 0.0, max(1.0, np.abs(values).max())")
            for change in ("1.0 to 2.0", "max to min")
        ],
        "by how much an action must be better to be taken: what is lost by that is added to the bound",
    ),
    ("planning/reduced", "zeros to ones", "choice, values = np.zeros(n, np.int64), np.zeros(n)"):
        "the values are solved for before they are read",
    ("planning/reduced", "1 to 2", "place = np.full(mdp.n_states, -1)"): "states out of reach have no place to be read",
    ("planning/reduced", "1 to 2", "row = sparse.csr_array((mdp.start > 0).astype(float).reshape(1, -1))"):
        "reshape reads -2 like -1",
    ("planning/reduced", "zeros to ones",
     "choice, depth = np.zeros(self.n, dtype=np.int64), np.zeros(self.n, dtype=np.int64)"):
        "every state comes to a leaf, which sets both",
    ("planning/reduced", "zeros to ones", "full = np.zeros(self.mdp.n_states, dtype=np.int64)"):
        "what is done in states out of reach, and in terminal ones",
    ("planning/reduced", "zeros to ones", "counts = np.zeros((len(states), n_actions), dtype=np.int64)"):
        "each column is set",
    ("planning/reduced", "1 to 2", "reached = np.zeros(count + 1, dtype=bool)"): "one more entry that is not read",
    ("planning/reduced", "Gt to GtE",
     "losing = gamma == 1.0 and bound > cutoff and np.isfinite(bound) and bool((self.reward < 0).all())"):
        "a bound at the cutoff is as good as minus infinity",
    ("planning/reduced", "LtE to Lt", "splits.append((c, middle if below <= middle < above else below))"):
        "either way it is the lower number",
    **dict.fromkeys(
        [
            ("planning/reduced", change,
             "optimum = -np.inf if np.isneginf(values[start > 0]).any() else "
             "float(start[start > 0] @ values[start > 0])")
            for change in ("any to all", "0 to 1")
        ],
        "a mean with minus infinity in it is minus infinity as well",
    ),
    **dict.fromkeys(
        [
            ("planning/reduced", change,
             "if mdp.gamma < 1.0 and mdp.horizon is None and len(states) <= MAX_DIRECT_STATES:")
            for change in ("LtE to Lt", "LtE to Gt")
        ],
        "the same values in another way",
    ),
    ("planning/reduced", "Gt to GtE", "if q > best:"): "of two equal actions either may be taken",
    **dict.fromkeys(
        [("planning/reduced", change, "for _ in range(10 * n + 10):") for change in ("10 to 11", "Mult to Add")],
        "how many rounds it may take before another bound is given",
    ),
    **dict.fromkeys(
        [("planning/return_bounds", "Gt to GtE", text)
         for text in ("if total > best:", "if best - values[s] > change:", "if abs(best - values[s]) > change:",
                      "if values[s] - best > change:")],
        "the larger of two equal numbers",
    ),
    ("planning/return_bounds", "Lt to LtE", "if best < values[s]:"): "set to what it is",
    **dict.fromkeys(
        [("planning/return_bounds", change, "s = n - 1 - k if sweep % 2 == 0 else k")
         for change in ("2 to 3", "Mod to FloorDiv", "0 to 1", "Eq to NotEq", "condition negated")],
        "the order of the states",
    ),
    **dict.fromkeys(
        [("planning/return_bounds", "Lt to LtE", text)
         for text in ("if change < 1e-13:", "if bound <= cutoff or change < max(1e-13, 1e-15 * abs(bound)):",
                      "if change < 1e-14 or (losing and (bound <= cutoff or idle_sweeps > MAX_IDLE_SWEEPS)):",
                      "if mass < 1.0 - 1e-12:", "if safe and (near or mass < 1.0 - 1e-12):")],
        "a number that is exactly the limit may count either way",
    ),
    ("planning/return_bounds", "max to min",
     "if bound <= cutoff or change < max(1e-13, 1e-15 * abs(bound)):"): "it goes on until less changes",
    ("planning/return_bounds", "Sub to Add", "change = best - values[s]"): "it goes on until nothing changes at all",
    ("planning/return_bounds", "GtE to Gt", "if sweep >= SWEEPS_BEFORE_COPYING_ACTIONS:"):
        "both ways give the same numbers",
    **dict.fromkeys(
        [("planning/return_bounds", change, "if sweep == SWEEPS_BEFORE_COPYING_ACTIONS:")
         for change in ("Eq to NotEq", "condition negated")],
        "copied in other sweeps, too",
    ),
    ("planning/return_bounds", "0 to 1",
     "first, begin, earned, after, weight = "
     "gather(pointer, successor, probability, reward, allowed[:0], price, gamma)"):
        "copied again before it is read",
    ("planning/return_bounds", "Gt to GtE",
     "if change < 1e-14 or (losing and (bound <= cutoff or idle_sweeps > MAX_IDLE_SWEEPS)):"):
        "ends a sweep earlier, with a bound",
    ("planning/return_bounds", "1 to 2", "first, earned = np.zeros(n + 1, np.int64), np.empty(n * n_actions)"):
        "one more entry that is not read",
    ("planning/return_bounds", "1 to 2", "begin = np.zeros(n * n_actions + 1, np.int64)"):
        "one more entry that is not read",
    ("planning/return_bounds", "0 to 1", "idle_sweeps = idle_sweeps + 1 if bound == before else 0"):
        "ends a sweep earlier, with a bound",
    **dict.fromkeys(
        [("planning/return_bounds", change, "bound, idle_sweeps = 0.0, 0") for change in ("0.0 to 1.0", "0 to 1")],
        "ends a sweep earlier or later, with a bound",
    ),
    ("planning/return_bounds", "0.0 to 1.0", "bound = 0.0"): "set in every sweep",
    ("planning/return_bounds", "zeros to ones", "new = np.zeros(n)"): "set in every sweep",
    ("planning/return_bounds", "0.0 to 1.0", "change = 0.0"): "it goes on though nothing changes",
    ("planning/labelling", "GtE to Gt",
     "may_last = largest_reward * mdp.horizon >= worst or problem.reward.max() > 0"):
        "a number that is exactly the limit, which lies two tolerances below what matters",
    ("planning/labelling", "Lt to LtE", "if left_leaves + right_leaves < best[0]:"): "another tree of as many leaves",
    ("planning/labelling", "condition negated",
     "values, q = value_iteration(mdp if mdp.horizon is None else replace(mdp, horizon=None), deadline=deadline)"):
        "wherever a best policy goes, it then has time enough to end",
    ("planning/labelling", "2 to 3", "if 2 ** min(depth, MAX_COUNTED_DEPTH) < len(actions):"):
        "that there is no tree is found out later",
    **dict.fromkeys(
        [("planning/solve", change, "if width <= MIN_NARROWING * before:")
         for change in ("Mult to Add", "condition negated", "LtE to Lt", "LtE to Gt")],
        "which of two ways makes the bracket narrower",
    ),
    **dict.fromkeys(
        [("planning/solve", change,
          "if 0.5 * factor * width <= tolerance * scale or width <= ROUNDING * scale:")
         for change in ("Or to And", "LtE to Lt")],
        "it goes on until the bracket is narrower",
    ),
    **dict.fromkeys(
        [("planning/solve", change,
          "is_swept = mdp.horizon is None and mdp.n_states > MAX_JACOBI_STATES and "
          "(rewards.max() <= 0 or rewards.min() >= 0)")
         for change in ("Or to And", "LtE to Lt", "GtE to Gt", "Gt to GtE")],
        "the same values, slower",
    ),
    ("planning/solve", "max to min", "scale = max(1.0, np.abs(values[~lost]).max(initial=0.0))"):
        "it goes on until less changes",
    ("planning/solve", "max to min", "scale, before, width = max(1.0, float(np.abs(new).max())), width, high - low"):
        "it goes on until the bracket is narrower",
    ("planning/solve", "Lt to LtE", "if np.abs(new - steps).max() < 1e-9:"): "a number that is exactly the limit",
    ("planning/solve", "Lt to LtE", "lost = ~_can_stop_losing(mdp) & (values < earlier)"):
        "values of states that go on losing fall",
    ("planning/solve", "Gt to GtE", "reached = visits(choice, mdp)[0] > 0.0"):
        "states out of reach are improved, too, which changes no return",
    ("planning/labelling", "LtE to Lt", "if not abs(start - problem.optimum) <= problem.tolerance:"):
        "a difference that is exactly the limit",
    ("planning/labelling", "0 to 1",
     "may_last = largest_reward * mdp.horizon >= worst or problem.reward.max() > 0"):
        "more caution than is needed: what goes on for ever without a loss is seen by the optimum without a horizon",
    ("planning/labelling", "GtE to Gt", "if left_leaves >= best[0]:"): "another tree of as many leaves is looked at",
    **dict.fromkeys(
        [("planning/labelling", change,
          "options = sorted(np.flatnonzero(best[state]).tolist(), key=lambda a: (a not in used, a), reverse=True)")
         for change in ("NotIn to In", "True to False")],
        "the order in which labels are tried",
    ),
    ("planning/labelling", "GtE to Gt",
     "return (q >= values[:, None] - problem.tolerance) & np.isfinite(q)"): "a number that is exactly the limit",
    **dict.fromkeys(
        [("planning/labelling", change, "if limit < 1:") for change in ("Lt to LtE", "condition negated", "1 to 2")],
        "with one leaf less than one nothing that waits passes its own test",
    ),
    ("planning/labelling", "max to min",
     "may_last = largest_reward * mdp.horizon >= worst or problem.reward.max() > 0"):
        "more caution than is needed: what goes on for ever without a loss is seen by the optimum without a horizon",
    ("planning/labelling", "Gt to GtE", "if time.monotonic() > deadline:"): "a moment that is exactly the limit",
    ("planning/labelling", "0 to 1",
     "signature = row.tobytes() if row[0] else (~row).tobytes()  # either side may be the left one"):
        "of any one state it may be asked on which side it is",
    ("planning/relaxation", "zeros to ones",
     "return cls(np.zeros(count, np.int64), np.zeros((count, count)), np.zeros(count), np.zeros(count"
          "))"):
        "written before it is read",
    **dict.fromkeys(
        [("planning/relaxation", change,
          "if different > MAX_UPDATE_SHARE * n + 1:")
         for change in ("Gt to LtE", "condition negated", "Add to Sub", "Mult to Add", "Gt to GtE", "1 to 2")],
        "which of two ways leads to the same policy",
    ),
    ("planning/relaxation", "1 to 2",
     "best, best_a = -np.inf, -1"):
        "every point has an allowed action, which takes its place",
    ("planning/relaxation", "False to True",
     "refreshed = changed = False"):
        "the inverse is not computed anew: the residual still makes a bound of the values",
    **dict.fromkeys(
        [("planning/relaxation", change,
          "for sweep in range(10 * n + 100):")
         for change in ("Mult to Add", "100 to 101", "10 to 11")],
        "after how many sweeps it gives up",
    ),
    **dict.fromkeys(
        [("planning/relaxation", change,
          "largest, fallen_most, fallen_least = 1.0, 0.0, np.inf")
         for change in ("1.0 to 2.0", "0.0 to 1.0")],
        "more actions are looked at, or a larger difference counts as none",
    ),
    **dict.fromkeys(
        [("planning/relaxation", change,
          "s = n - 1 - k if sweep % 2 == 0 else k")
         for change in ("Mod to FloorDiv", "2 to 3", "0 to 1", "Sub to Add", "Eq to NotEq")],
        "the order of the states",
    ),
    ("planning/relaxation", "max to min",
     "drift = max(drift, abs(mine - policy.values[s]))"):
        "whether the inverse is computed anew",
    **dict.fromkeys(
        [("planning/relaxation", change,
          "if drift > MAX_DRIFT * largest and not refreshed:")
         for change in ("And to Or", "Gt to GtE", "Gt to LtE", "Mult to Add", "condition negated")],
        "whether the inverse is computed anew",
    ),
    **dict.fromkeys(
        [("planning/relaxation", change,
          "if drift > MAX_DRIFT * max(1.0, float(np.abs(self.policy.values).max())):")
         for change in ("condition negated", "Mult to Add", "max to min", "Gt to GtE", "Gt to LtE", "1.0 to 2.0")],
        "whether the inverse is computed anew",
    ),
    ("planning/relaxation", "LtE to Lt",
     "if a == policy.choice[s] or below[s, a] <= 0.0 or not allows(words, p, a):"):
        "nothing is added for a loss of zero",
    ("planning/relaxation", "Gt to GtE",
     "if model.start[s] > 0.0:"):
        "nothing is added for what is not there",
    ("planning/relaxation", "Gt to GtE",
     "if visits[s] > MIN_VISITS:"):
        "nothing is added for what is not there",
    ("planning/relaxation", "Gt to GtE",
     "if mass[s] > 0.0:"):
        "nothing is added for what is not there",
    ("planning/relaxation", "Lt to LtE",
     "if left < 1e-6:"):
        "a number that is exactly the limit",
    ("planning/agreement", "1 to 2",
     "inside, length = np.empty((depth + 1, count), np.int64), np.zeros(depth + 1, np.int64)"):
        "room for one more level, which is not used",
    ("planning/agreement", "1 to 2",
     "high, on_right = np.zeros(depth + 1, np.int64), np.zeros(depth + 1, np.bool_)"):
        "room for one more level, which is not used",
    ("planning/agreement", "zeros to ones",
     "high, on_right = np.zeros(depth + 1, np.int64), np.zeros(depth + 1, np.bool_)"):
        "set when a level is entered",
    **dict.fromkeys(
        [("planning/agreement", change,
          "low[level], found[level], high[level], on_right[level] = 0, -1, -1, False")
         for change in ("0 to 1", "low to high", "high to low")],
        "set again with the first feature",
    ),
    ("planning/agreement", "BitOr to BitAnd",
     "return np.bitwise_and.reduce(words[index], axis=0) if len(index) else words[:1].max(axis=0) | ~"
          "np.uint64(0)"):
        "of the part for no points: any action is right there",
    **dict.fromkeys(
        [("planning/constraint_search", change,
          "per_point = float(points.x.shape[1]) * np.log2(np.maximum(points.sizes, 2)).sum() ** max(0, dep"
          "th - 1)")
         for change in ("Mult to Add", "max to min", "Sub to Add", "1 to 2")],
        "how many points are asked at once; where not all are, the search says so",
    ),
    ("planning/constraint_search", "LtE to Lt",
     "return not self.heap or -self.heap[0][0] <= self.goal()"):
        "a number that is exactly the limit",
    ("planning/constraint_search", "LtE to Lt",
     "if bound <= self.goal() or (math.isinf(bound) and bound < 0):"):
        "a number that is exactly the limit",
    ("planning/constraint_search", "Lt to LtE",
     "if bound <= self.goal() or (math.isinf(bound) and bound < 0):"):
        "zero is not infinite",
    ("planning/constraint_search", "Mult to Add",
     "self.work[0] = int(WORK_PER_SECOND * max(0.0, deadline - time.monotonic()))"):
        "how much work is allowed",
    ("planning/constraint_search", "Gt to GtE",
     "if len(self.heap) > MAX_WAITING:"):
        "half is given up one node earlier",
    ("planning/constraint_search", "Gt to GtE",
     "if len(confined) > self.max_points:"):
        "as many points as are allowed: all of them",
    ("planning/constraint_search", "2 to 3",
     "self.heap.sort(key=lambda item: item[:2])"):
        "no two nodes have the same number",
    ("planning/constraint_search", "Add to Sub",
     "self.pushed += 1"):
        "which of equal bounds comes first",
    **dict.fromkeys(
        [("planning/constraint_search", change,
          "if self.work[0] < 0:")
         for change in ("Lt to LtE", "0 to 1")],
        "gives up one point earlier",
    ),
    **dict.fromkeys(
        [("planning/constraint_search", change,
          "least = np.where(lost[conflict] >= level, lost[conflict], np.inf).min(axis=1)")
         for change in ("min to max", "GtE to Lt", "GtE to Gt")],
        "the order of a conflict's points, any of which is right",
    ),
    ("planning/constraint_search", "GtE to Gt",
     "if time.monotonic() >= self.deadline:  # the children that are missing have no more than their "
          "parent"):
        "a moment that is exactly the limit",
    **dict.fromkeys(
        [("planning/optimal_tree", change,
          "yield from _climbing(state, rng, min(deadline, time.monotonic() + settings.climbing * settings."
          "seconds))")
         for change in ("Add to Sub", "Mult to Add")],
        "how long it climbs",
    ),
    **dict.fromkeys(
        [("planning/optimal_tree", change,
          "lossless = lossless_tree(problem, depth, min(deadline, began + share * settings.seconds))")
         for change in ("Add to Sub", "Mult to Add")],
        "how long it labels",
    ),
    **dict.fromkeys(
        [("planning/optimal_tree", change,
          "climber = Climber(points, state.depth, problem.tolerance, seed, problem.optimum - 0.5 * problem"
          ".tolerance)")
         for change in ("Sub to Add", "Mult to Add")],
        "from which return on a tree is not climbed from",
    ),
    ("planning/optimal_tree", "min to max",
     "climber.offer(shape, min(deadline, time.monotonic() + OFFER_SECONDS))"):
        "how long it climbs",
    ("planning/optimal_tree", "min to max",
     "improved = climber.run(min(deadline, time.monotonic() + seconds))"):
        "how long it climbs",
    ("planning/optimal_tree", "min to max",
     "if climber.try_all_stumps(min(deadline, time.monotonic() + STUMP_TIME_SHARE * state.settings.se"
          "conds)):"):
        "how long it climbs",
    ("planning/optimal_tree", "Add to Sub",
     "improved = climber.run(min(deadline, time.monotonic() + seconds))"):
        "how long it climbs",
    ("planning/optimal_tree", "Mult to Add",
     "seconds = np.inf if search.is_finished else share * SLICE_SECONDS"):
        "how long it climbs",
    **dict.fromkeys(
        [("planning/optimal_tree", change,
          "share = min(MAX_CLIMB_SHARE, 2.0 * share) if improved else max(MIN_CLIMB_SHARE, IDLE_SHRINK * s"
          "hare)")
         for change in ("2.0 to 3.0", "max to min", "min to max", "Mult to Add")],
        "how long it climbs",
    ),
    **dict.fromkeys(
        [("planning/optimal_tree", change,
          "patient = 0.5 * max(0.0, deadline - time.monotonic()) if depth > 2 and problem.n > 20 else 0.0")
         for change in ("condition negated", "And to Or", "20 to 21", "Mult to Add", "0.5 to 1.5", "max to min",
                        "0.0 to 1.0")],
        "how long it climbs",
    ),
    ("planning/optimal_tree", "Add to Sub",
     "idle_climbs, at_least = 0, time.monotonic() + patient"):
        "how long it climbs",
    **dict.fromkeys(
        [("planning/optimal_tree", change,
          "if idle_climbs >= MAX_IDLE_CLIMBS and time.monotonic() >= at_least:")
         for change in ("condition negated", "And to Or", "GtE to Gt")],
        "how long it climbs",
    ),
    **dict.fromkeys(
        [("planning/optimal_tree", change,
          "idle_climbs = 0 if (state.value, -state.leaves) > before else idle_climbs + 1")
         for change in ("condition negated", "Gt to GtE")],
        "how long it climbs",
    ),
    ("planning/optimal_tree", "condition negated",
     "if time.monotonic() - reported_at > REPORT_SECONDS:"):
        "how long it climbs, and how often it says so",
    ("planning/optimal_tree", "condition negated",
     "if time.monotonic() > deadline or state.optimal:"):
        "how long it climbs, and how often it says so",
    ("planning/optimal_tree", "LtE to Lt",
     "if state.leaves <= leaves:"):
        "further searches find nothing",
    ("planning/optimal_tree", "LtE to Lt",
     "if search.bound <= state.value + tolerance:"):
        "a number that is exactly the limit",
    ("planning/optimal_tree", "LtE to Lt",
     "return self.bound <= self.value + self.problem.tolerance or self.bound == self.value"):
        "a number that is exactly the limit",
    **dict.fromkeys(
        [("planning/branch", change,
          "if explored % COMPLETION_INTERVAL == 1 and not accept_equal:")
         for change in ("Mod to FloorDiv", "And to Or", "1 to 2", "Eq to NotEq", "condition negated")],
        "when a partial tree is completed, for a candidate",
    ),
    ("planning/branch", "Gt to GtE",
     "if time.monotonic() > deadline:  # some children may be missing: their parent's bound stands for them"):
        "a moment that is exactly the limit",
    ("planning/branch", "Sub to Add",
     "cutoff = goal - 2 * problem.tolerance"):
        "how early a bound may stop, which is one whenever it stops",
    ("planning/branch", "1 to 2",
     "splits_left = limits.depth - region.depth if region.action == OPEN else -1"):
        "any number that is no number of splits",
    ("planning/branch", "Gt to GtE",
     "charged = region.depth if limits.price > 0.0 else 0"):
        "fewer are recognised as equal",
    ("planning/branch", "0.0 to 1.0",
     "q = np.where(finite, q, q[finite].min(initial=0.0) - 100.0)"):
        "of candidates, which are evaluated",
    **dict.fromkeys(
        [("planning/branch", change,
          "lead = q - q.max(axis=1, keepdims=True)")
         for change in ("Sub to Add", "max to min")],
        "of candidates, which are evaluated",
    ),
    ("planning/points", "zeros to ones", "choice = np.zeros(self.count, dtype=np.int64)"):
        "every point lies in a region, which sets it",
    ("planning/points", "1 to 2",
     "point.reshape(-1).astype(np.int64), problem.mdp.gamma, bool((goes_on < 1.0 - 1e-9).any()),"):
        "reshape reads -2 like -1",
    ("planning/points", "Lt to LtE",
     "point.reshape(-1).astype(np.int64), problem.mdp.gamma, bool((goes_on < 1.0 - 1e-9).any()),"):
        "a number that is exactly the limit",
    ("planning/agreement", "zeros to ones", "row = np.zeros((n_actions + 63) // 64, dtype=np.uint64)"):
        "the first bit of each word is an action, which is set anyway",
    ("planning/agreement", "0 to 1", "if work[0] < 0:"): "gives up one point earlier",
    ("planning/branch", "0.0 to 1.0", "allowed, _ = _confined(problem, partial.regions, 0.0)"):
        "what visits cost is not read",
    ("planning/branch", "2 to 3", "self.given_up = max(self.given_up, -self.heap[MAX_WAITING // 2][0])"):
        "a bound that is higher than need be",
    ("planning/branch", "0.0 to 1.0", "if limits.price > 0.0 and time.monotonic() > deadline:"):
        "it goes on for a little though time is over",
    ("planning/branch", "BitAnd to BitOr", "inside = region.where & partial.seen"):
        "splits that divide nothing in reach are looked at as well",
    ("planning/relaxation", "max to min",
     "near = fallen_most - model.gamma * max(0.0, fallen_least) + TIE * largest"):
        "more actions are looked at than need be",
    **dict.fromkeys(
        [("planning/branch", change, "if limits.price > 0.0:") for change in ("Gt to LtE", "Gt to GtE")],
        "whether a bound is computed anew: that of the parent holds as well",
    ),
    ("planning/labelling", "Sub to Add", "values = problem.top - 0.1 * problem.tolerance"):
        "a fifth of what counts as equal",
    ("planning/labelling", "Gt to GtE", "if time.monotonic() > self.deadline:"): "a moment that is exactly the limit",
}  # fmt: skip
