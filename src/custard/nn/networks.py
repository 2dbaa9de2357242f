"""Small multilayer perceptrons as plain tuples of arrays: one source for JAX and NumPy, and its compiled twin.

A network is a tuple of matrices, one per layer, [inputs + 1, outputs] float32; the last row is the bias. JAX learns
such tuples as they are (they are pytrees); numba evaluates them one row at a time inside compiled rollouts.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from custard.core.numba_tools import njit

__all__ = [
    "Weights", "dueling", "dueling_heads", "encode", "encode_row", "evaluate", "forward", "forward_row",
    "make_layer_outputs", "make_network", "relu",
]  # fmt: skip

Weights = tuple[Any, ...]


def make_network(rng: np.random.Generator, sizes: Sequence[int], last: float = 1.0) -> Weights:
    """Make a network with these layer sizes, inputs first: orthogonal weights, zero biases.

    Hidden layers are scaled by sqrt(2), the last one by `last`.

    >>> [w.shape for w in make_network(np.random.default_rng(0), (3, 8, 2))]
    [(4, 8), (9, 2)]
    """
    layers = []
    for k, (fan_in, fan_out) in enumerate(pairwise(sizes)):
        square = rng.standard_normal((max(fan_in, fan_out), min(fan_in, fan_out)))
        q, r = np.linalg.qr(square)
        q = q * np.where(np.diag(r) < 0, -1.0, 1.0)
        gain = last if k == len(sizes) - 2 else np.sqrt(2.0)
        matrix = gain * (q if fan_in >= fan_out else q.T)
        layers.append(np.ascontiguousarray(np.vstack([matrix, np.zeros((1, fan_out))]), dtype=np.float32))
    return tuple(layers)


def affine(x: Any, w: Any) -> Any:
    """Return one layer's outputs before activation, [..., inputs] -> [..., outputs]."""
    return x @ w[:-1] + w[-1]


def relu(x: np.ndarray) -> np.ndarray:
    """Return max(x, 0), in NumPy."""
    return np.maximum(x, 0.0)


def forward(weights: Weights, x: Any, activate: Callable[[Any], Any], layer: Callable[[Any, Any], Any] = affine) -> Any:
    """Return the network's outputs, [..., inputs] -> [..., outputs].

    `activate` is `relu`, jax.nn.relu, jnp.tanh, np.tanh, …; `layer` another way to compute `affine`.

    >>> forward(make_network(np.random.default_rng(0), (3, 8, 2)), np.zeros((5, 3), dtype=np.float32), np.tanh).shape
    (5, 2)
    """
    for w in weights[:-1]:
        x = activate(layer(x, w))
    return layer(x, weights[-1])


def dueling(outputs: Any) -> Any:
    """Return Q = V + A - mean A from outputs [..., 1 + n_actions], the first of which is V."""
    return dueling_heads(outputs[..., :1], outputs[..., 1:])


def dueling_heads(value: Any, advantage: Any) -> Any:
    """Return Q = V + A - mean A from V [..., 1] and A [..., n_actions] (Wang et al. 2016)."""
    return value + advantage - advantage.mean(axis=-1, keepdims=True)


def encode(x: Any, frequencies: int, xp: Any = np) -> Any:
    """Return a network's input: x, then its sines and cosines at 1, 2, 4, … half waves per unit.

    `xp` is the module of x: NumPy or jax.numpy.

    >>> encode(np.array([[0.0, 0.5]]), 1).round(3).tolist()
    [[0.0, 0.5, 0.0, 1.0, 1.0, 0.0]]
    """
    waves = [float(np.pi * 2.0**k) * x for k in range(frequencies)]
    return xp.concatenate([x, *(f(w) for w in waves for f in (xp.sin, xp.cos))], axis=-1) if waves else x


def make_layer_outputs(weights: Weights) -> np.ndarray:
    """Allocate the layers that `forward_row` writes to: two rows as wide as the widest layer."""
    return np.zeros((2, max(w.shape[1] for w in weights)), dtype=np.float32)


@njit(cache=True)
def encode_row(x, frequencies, out):
    """Write `encode` of one row x [n] into `out`."""
    n = len(x)
    for c in range(n):
        out[c] = x[c]
    for k in range(frequencies):
        for c in range(n):
            angle = np.float32(np.pi * 2.0**k) * np.float32(x[c])
            out[n * (1 + 2 * k) + c] = np.sin(angle)
            out[n * (2 + 2 * k) + c] = np.cos(angle)


@njit(cache=True)
def _rational_tanh(x):
    """Return tanh by the rational approximation of Eigen and XLA: within 1e-6, and vectorised by the compiler."""
    x = min(max(x, np.float32(-7.9)), np.float32(7.9))
    x2 = x * x
    p = np.float32(-2.76076847742355e-16)
    p = p * x2 + np.float32(2.00018790482477e-13)
    p = p * x2 + np.float32(-8.60467152213735e-11)
    p = p * x2 + np.float32(5.12229709037114e-08)
    p = p * x2 + np.float32(1.48572235717979e-05)
    p = p * x2 + np.float32(6.37261928875436e-04)
    p = p * x2 + np.float32(4.89352455891786e-03)
    q = np.float32(1.19825839466702e-06)
    q = q * x2 + np.float32(1.18534705686654e-04)
    q = q * x2 + np.float32(2.26843463243900e-03)
    q = q * x2 + np.float32(4.89352518554385e-03)
    return x * p / q


@njit(cache=True, error_model="numpy")
def evaluate(weights, x, layer_outputs, rectified):
    """Write the outputs for one float32 row x into layer_outputs[(layers - 1) % 2].

    `layer_outputs` comes from `make_layer_outputs`. Hidden layers are activated by relu where `rectified`, else tanh.
    """
    last = len(weights) - 1
    previous = x
    for layer in range(last + 1):
        w = weights[layer]
        inputs, outputs = w.shape[0] - 1, w.shape[1]
        out = layer_outputs[layer % 2, :outputs]
        for j in range(outputs):  # a loop: slices would compile their error messages too
            out[j] = w[inputs, j]
        whole = inputs - inputs % 4
        for i in range(0, whole, 4):  # four inputs at a time: fewer passes over the outputs
            a, b, c, d = previous[i], previous[i + 1], previous[i + 2], previous[i + 3]
            for j in range(outputs):
                out[j] += (a * w[i, j] + b * w[i + 1, j]) + (c * w[i + 2, j] + d * w[i + 3, j])
        for i in range(whole, inputs):
            for j in range(outputs):
                out[j] += previous[i] * w[i, j]
        if layer < last:
            if rectified:
                for j in range(outputs):
                    out[j] = max(out[j], np.float32(0.0))
            else:
                for j in range(outputs):
                    out[j] = _rational_tanh(out[j])
        previous = out


@njit(cache=True)
def forward_row(weights, x, layer_outputs, rectified):
    """Call `evaluate` and return a view of its outputs."""
    evaluate(weights, x, layer_outputs, rectified)
    last = len(weights) - 1
    return layer_outputs[last % 2, : weights[last].shape[1]]
