"""The IBMDP's transition rule over many environments at once, compiled.

Thresholds, answers and normalisation are the functions of `custard.ibmdp.splits`, compiled. Observations and masks are
kept up to date in place; a question touches only the entries of the feature it asks about.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from custard.core.numba_tools import njit
from custard.envs.pcg64 import uniform
from custard.ibmdp import splits

__all__ = [
    "CompiledRules",
    "ask",
    "best_afforded",
    "compiled_rules",
    "narrowed",
    "normalise",
    "project",
    "random_afforded",
    "restart",
    "separable",
    "separates",
    "threshold_of",
]

project = njit(cache=True)(splits.project)
narrowed = njit(cache=True)(splits.narrowed)
normalise = njit(cache=True)(splits.normalise)
smallest = njit(cache=True)(splits.smallest)


@njit(cache=True)
def separates(integer, low, lower, upper, threshold):
    """Return `splits.separates` of single numbers."""
    if integer:
        return np.floor(threshold) >= smallest(low, lower) and np.floor(threshold) + 1 <= np.floor(upper)
    return lower < threshold and threshold < upper


@njit(cache=True)
def separable(integer, low, lower, upper):
    """Return `splits.separable` of single numbers."""
    return smallest(low, lower) + 1 <= np.floor(upper) if integer else lower < upper


class CompiledRules(NamedTuple):
    """The rules of an IBMDP with discrete splits as compiled code reads them: n features, M = n * p splits."""

    low: Any  # [n]
    high: Any  # [n]
    integer: Any  # [n] bool
    fractions: Any  # [p]
    feature: Any  # [M] int32: the feature that each split tests
    n_base: int
    depth_limit: int
    has_depth_limit: bool
    mask_useless: bool
    gamma_w: float


def compiled_rules(rules: splits.Rules) -> CompiledRules:
    """Return the rules of an IBMDP with discrete splits for compiled code."""
    f = rules.features
    return CompiledRules(
        low=np.array(f.low),
        high=np.array(f.high),
        integer=f.integer,
        fractions=splits.fractions(int(rules.splits)),
        feature=np.repeat(np.arange(f.n, dtype=np.int32), int(rules.splits)),
        n_base=rules.n_base,
        depth_limit=rules.depth_limit,
        has_depth_limit=rules.max_depth is not None,
        mask_useless=rules.mask_useless,
        gamma_w=float(rules.gamma_w),
    )


@njit(cache=True)
def threshold_of(rules, c, j, lower, upper):
    """Return v_p of the j-th split of feature c between these bounds; NaN if it is useless there and masked."""
    v_p = project(lower, upper, rules.fractions[j])
    if rules.mask_useless and not separates(rules.integer[c], rules.low[c], lower, upper, v_p):
        return np.nan
    return v_p


@njit(cache=True)
def best_afforded(values, mask):
    """Return the first afforded action with the largest value."""
    best = -1
    for a in range(len(values)):
        if mask[a] and (best < 0 or values[a] > values[best]):
            best = a
    return best


@njit(cache=True)
def random_afforded(rng, mask):
    """Return a random afforded action."""
    rank = int(uniform(rng, 0.0, 1.0) * mask.sum())
    for a in range(len(mask)):
        if mask[a]:
            if rank == 0:
                return a
            rank -= 1
    return rank


@njit(cache=True)
def ask(
    actions, v, busy, rules, low, width, integer, fractions, x, lower, upper, depth, queries, obs, mask,
    acting, reward, discount, truncated,
):  # fmt: skip
    """Answer every question among the actions of [N] environments, with its price, discount and the query limit.

    Return how many environments act instead, listed in `acting`, and how many reached the limit. An action outside
    the space ends the call with minus one minus its environment's number. Environments that are `busy` are passed over.

    actions, v                   [N], the IBMDP actions and, in the parameterised form, their v
    busy                         [N] bool
    rules                        n_base, depth limit, max_queries, mask_useless, parameterised, zeta, gamma_w
    low, width, integer          [n], of the features
    fractions                    [p], the discrete v
    x, lower, upper              [N, n], base states and bounds
    depth, queries               [N], questions that narrowed bounds, and all questions
    obs, mask                    [N, …], kept up to date in place
    acting, reward, discount, truncated  [N], written
    """
    n_base, depth_limit, max_queries, mask_useless, parameterised, zeta, gamma_w = rules
    n = len(low)
    per_feature = len(fractions)
    bounds = obs.shape[1] - 2 * n  # where the lower bounds start
    count = limited = 0
    for i in range(len(actions)):
        reward[i] = zeta
        discount[i] = gamma_w
        truncated[i] = False
        if busy[i]:
            continue
        number = actions[i]
        if number < n_base:
            if number < 0:
                return -1 - i, 0
            acting[count] = i
            count += 1
            continue
        if number >= mask.shape[1]:
            return -1 - i, 0
        queries[i] += 1
        if queries[i] >= max_queries:
            truncated[i] = True
            limited += 1
        if not mask[i, number]:
            continue
        c = (number - n_base) // per_feature
        j = (number - n_base) - c * per_feature
        v_p = project(lower[i, c], upper[i, c], v[i] if parameterised else fractions[j])
        lower[i, c], upper[i, c] = narrowed(lower[i, c], upper[i, c], v_p, x[i, c] <= v_p)
        obs[i, bounds + c] = normalise(lower[i, c], low[c], width[c])
        obs[i, bounds + n + c] = normalise(upper[i, c], low[c], width[c])
        depth[i] += 1
        if depth[i] >= depth_limit:
            mask[i, n_base:] = False
        elif mask_useless:
            first = n_base + c * per_feature
            if parameterised:
                mask[i, first] = separable(integer[c], low[c], lower[i, c], upper[i, c])
            else:
                for k in range(per_feature):
                    threshold = project(lower[i, c], upper[i, c], fractions[k])
                    mask[i, first + k] = separates(integer[c], low[c], lower[i, c], upper[i, c], threshold)
    return count, limited


@njit(cache=True)
def restart(index, low, high, width, root_bounds, root_mask, x, lower, upper, depth, queries, obs, mask):
    """Forget all bounds in the environments `index`, whose base states are new; return a feature that is NaN, or -1.

    low, high, width        [n], each feature's bounds at the root, and what `normalise` divides by
    root_bounds, root_mask  what observation and mask hold where nothing is known
    x                       [N, n], the base states
    lower, upper            [N, n], the bounds, and depth, queries [N], obs, mask: changed in place
    """
    n = len(low)
    bounds = obs.shape[1] - 2 * n
    bad = -1
    for i in index:
        for c in range(n):
            lower[i, c] = low[c]
            upper[i, c] = high[c]
            if np.isnan(x[i, c]):
                bad = c
            if bounds:
                obs[i, c] = normalise(x[i, c], low[c], width[c])
        depth[i] = 0
        queries[i] = 0
        obs[i, bounds:] = root_bounds
        mask[i, :] = root_mask
    return bad
