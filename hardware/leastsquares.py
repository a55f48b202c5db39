"""Robust least squares with bounds, in numpy: enough to fit a handful of constants to timed kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

SOFT_SCALE = 0.1
"""Residual (of a logarithm) beyond which the soft L1 loss turns from squares to absolute values."""

_STEP = 1e-6
_MOST_STEPS = 200
_ENOUGH = 1e-12


class Parameter(NamedTuple):
    """Where to start and what is allowed; `low == high` keeps a parameter fixed."""

    start: float
    low: float
    high: float


def robust_fit(
    residuals: Callable[[Array], Array], parameters: Sequence[Parameter], scale: float = SOFT_SCALE
) -> Array:
    """Parameters that minimise the soft L1 loss `2 s^2 sum(sqrt(1 + (r / s)^2) - 1)` within their bounds.

    Levenberg-Marquardt on reweighted residuals; a parameter that a step would push out of its bounds stays at
    the bound. Ends when no damped step lowers the loss.
    """
    low, high = (np.array([getattr(p, side) for p in parameters]) for side in ("low", "high"))
    point = np.clip(np.array([p.start for p in parameters]), low, high)
    size = np.maximum(np.abs(point), 1e-3)
    at = residuals(point)
    loss, damping = _loss(at, scale), 1e-3
    for _ in range(_MOST_STEPS):
        gradient, curvature = _normal_equations(residuals, point, at, size, high, scale)
        stuck = ((point <= low) & (gradient > 0)) | ((point >= high) & (gradient < 0))
        free = np.flatnonzero(~stuck & (low < high))
        improved = 0.0
        while len(free) and damping < 1e12:
            step = _step(gradient[free], curvature[np.ix_(free, free)], damping)
            trial = point.copy()
            trial[free] = np.clip(point[free] + step * size[free], low[free], high[free])
            trial_at = residuals(trial)
            trial_loss = _loss(trial_at, scale)
            if trial_loss < loss:
                improved = loss - trial_loss
                point, at, loss, damping = trial, trial_at, trial_loss, max(damping / 5.0, 1e-12)
                break
            damping *= 4.0
        if improved <= _ENOUGH * loss:
            break
    return np.asarray(point)


def _loss(residual: Array, scale: float) -> float:
    """The soft L1 loss, infinite where a law gave no number."""
    total = float(2.0 * scale**2 * np.sum(np.sqrt(1.0 + (residual / scale) ** 2) - 1.0))
    return total if np.isfinite(total) else float("inf")


def _normal_equations(
    residuals: Callable[[Array], Array], point: Array, at: Array, size: Array, high: Array, scale: float
) -> tuple[Array, Array]:
    """Gradient and Gauss-Newton curvature by parameters in units of `size`; differences stay in bounds."""
    jacobian = np.empty((len(at), len(point)))
    for index in range(len(point)):
        step = _STEP if point[index] + _STEP * size[index] <= high[index] else -_STEP
        moved = point.copy()
        moved[index] += step * size[index]
        jacobian[:, index] = (residuals(moved) - at) / step
    weighted = jacobian / np.sqrt(1.0 + (at / scale) ** 2)[:, None]
    return weighted.T @ at, jacobian.T @ weighted


def _step(gradient: Array, curvature: Array, damping: float) -> Array:
    scaled = np.diag(np.maximum(np.diag(curvature), 1e-12))
    return np.asarray(-np.linalg.lstsq(curvature + damping * scaled, gradient, rcond=None)[0])
