"""Standard normal distribution on arrays, without scipy: its CDF and the inverse of it."""

from __future__ import annotations

import math

import numpy as np

from specfleet.workloads.requests import FloatArray

# Coefficients (constant term first) of algorithm AS 241, PPND16:
# M. J. Wichura, "The percentage points of the normal distribution", Applied Statistics 37 (1988) 477-484.
_CENTRE = (
    (3.3871328727963666080e0, 1.3314166789178437745e2, 1.9715909503065514427e3,
     1.3731693765509461125e4, 4.5921953931549871457e4, 6.7265770927008700853e4,
     3.3430575583588128105e4, 2.5090809287301226727e3),
    (1.0, 4.2313330701600911252e1, 6.8718700749205790830e2,
     5.3941960214247511077e3, 2.1213794301586595867e4, 3.9307895800092710610e4,
     2.8729085735721942674e4, 5.2264952788528545610e3),
)  # fmt: skip
_TAIL = (
    (1.42343711074968357734e0, 4.63033784615654529590e0, 5.76949722146069140550e0,
     3.64784832476320460504e0, 1.27045825245236838258e0, 2.41780725177450611770e-1,
     2.27238449892691845833e-2, 7.74545014278341407640e-4),
    (1.0, 2.05319162663775882187e0, 1.67638483018380384940e0,
     6.89767334985100004550e-1, 1.48103976427480074590e-1, 1.51986665636164571966e-2,
     5.47593808499534494600e-4, 1.05075007164441684324e-9),
)  # fmt: skip
_FAR_TAIL = (
    (6.65790464350110377720e0, 5.46378491116411436990e0, 1.78482653991729133580e0,
     2.96560571828504891230e-1, 2.65321895265761230930e-2, 1.24266094738807843860e-3,
     2.71155556874348757815e-5, 2.01033439929228813265e-7),
    (1.0, 5.99832206555887937690e-1, 1.36929880922735805310e-1,
     1.48753612908506148525e-2, 7.86869131145613259100e-4, 1.84631831751005468180e-5,
     1.42151175831644588870e-7, 2.04426310338993978564e-15),
)  # fmt: skip
_Ratio = tuple[tuple[float, ...], tuple[float, ...]]


def _ratio(coefficients: _Ratio, x: FloatArray) -> FloatArray:
    """Quotient of two polynomials in `x`."""
    above, below = coefficients
    return _polynomial(x, above) / _polynomial(x, below)


def _polynomial(x: FloatArray, coefficients: tuple[float, ...]) -> FloatArray:
    """Horner's rule, as numpy's `polyval` has it, whose import takes longer than a small run's lengths."""
    value = coefficients[-1] + x * 0.0
    for coefficient in coefficients[-2::-1]:
        value = coefficient + value * x
    return value


def normal_quantile(u: FloatArray) -> FloatArray:
    """z with P(Z <= z) = u for each u in [0, 1] (0 and 1 give -inf and inf); relative error about 1e-16.

    AS 241 (see the coefficients' source).
    """
    u = np.asarray(u, dtype=np.float64)
    q = u - 0.5
    with np.errstate(divide="ignore", invalid="ignore"):
        r = np.sqrt(-np.log(np.minimum(u, 1.0 - u)))
        tail = np.where(r <= 5.0, _ratio(_TAIL, r - 1.6), _ratio(_FAR_TAIL, r - 5.0))
    tail = np.where(np.isinf(r), np.inf, tail)
    centre = q * _ratio(_CENTRE, 0.180625 - q * q)
    return np.where(np.abs(q) <= 0.425, centre, np.copysign(tail, q))


def normal_cdf(z: FloatArray) -> FloatArray:
    """P(Z <= z) for each z, by the complementary error function: erfc(-z / sqrt 2) / 2."""
    scaled = np.asarray(z, dtype=np.float64) * -math.sqrt(0.5)
    tails = np.fromiter(map(math.erfc, scaled.ravel().tolist()), dtype=np.float64, count=scaled.size)
    return 0.5 * tails.reshape(scaled.shape)
