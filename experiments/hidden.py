"""What the owner of a model can do with its hidden output: bounds that no label-only method is expected to reach.

Temperature scaling (Guo et al., 2017), Dirichlet calibration with its off-diagonal penalty (Kull et al., 2019), and
learned test-time weights (Shanmugam et al., 2021): one weight for each view, on log probabilities. Penalties are chosen
on a fifth of the labelled pictures, and the fit is repeated on all of them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.optimize import minimize
from scipy.special import log_softmax

from looktwice.calibration.evidence import Codes, Floats, Places

PENALTIES = (1.0, 10.0, 100.0)


def log_loss(logs: Floats, truths: Codes) -> float:
    return -float(logs[np.arange(len(truths)), truths].mean())


def weighted_views(logs: Floats, truths: Codes, fit: Places) -> Floats:
    """(n, K): Σ_s θ_s · log p_s over (n, 1 + S, K), normalised; θ ≥ 0 has the least log loss."""
    train, hits, rows = logs[fit], truths[fit], np.arange(len(fit))

    def loss(theta: Floats) -> tuple[float, Floats]:
        chance = log_softmax(np.einsum("s,nsk->nk", theta, train), axis=1)
        residual = np.exp(chance)
        residual[rows, hits] -= 1.0
        return log_loss(chance, hits), np.einsum("nk,nsk->s", residual, train) / len(fit)

    start = np.full(logs.shape[1], 1.0 / logs.shape[1])
    theta = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=[(0.0, None)] * len(start)).x
    found: Floats = log_softmax(np.einsum("s,nsk->nk", theta, logs), axis=1)
    return found


def dirichlet(logs: Floats, truths: Codes, fit: Places) -> Floats:
    """(n, K): log softmax(W · log p + b); off-diagonal weights and b are penalised."""

    def fitted(rows: Places, penalty: float) -> Callable[[Floats], Floats]:
        return _dirichlet(logs[rows], truths[rows], penalty)

    return chosen(fitted, logs, truths, fit)


def chosen(
    fitted: Callable[[Places, float], Callable[[Floats], Floats]], features: Floats, truths: Codes, fit: Places
) -> Floats:
    """Log probabilities of all rows by the penalty with the least log loss on a fifth of the labelled pictures."""
    held, rest = np.split(fit, [len(fit) // 5])
    lost = {penalty: log_loss(fitted(rest, penalty)(features[held]), truths[held]) for penalty in PENALTIES}
    return fitted(fit, min(lost, key=lost.__getitem__))(features)


def _dirichlet(logs: Floats, truths: Codes, penalty: float) -> Callable[[Floats], Floats]:
    n, classes = logs.shape
    off, rows = 1.0 - np.eye(classes), np.arange(n)

    def apply(parameters: Floats, logs: Floats) -> Floats:
        weights, offset = parameters[:-classes].reshape(classes, classes), parameters[-classes:]
        found: Floats = log_softmax(logs @ weights.T + offset, axis=1)
        return found

    def loss(parameters: Floats) -> tuple[float, Floats]:
        weights, offset = parameters[:-classes].reshape(classes, classes), parameters[-classes:]
        chance = apply(parameters, logs)
        residual = np.exp(chance)
        residual[rows, truths] -= 1.0
        away = off * weights
        value = n * log_loss(chance, truths) + penalty * (float((away**2).sum()) + float(offset @ offset)) / 2
        gradient = residual.T @ logs + penalty * away
        return value, np.append(gradient.ravel(), residual.sum(axis=0) + penalty * offset)

    start = np.append(np.eye(classes).ravel(), np.zeros(classes))
    best = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 200}).x
    return lambda new: apply(best, new)
