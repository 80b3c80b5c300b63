"""Slow, obvious twins of every formula: dense matrices and plain loops, from the definitions alone."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

Array = NDArray[Any]

MASK64 = 2**64 - 1
GAMMA = 0x9E3779B97F4A7C15


# -- masks ------------------------------------------------------------------------------------------------


def mix64(z: int) -> int:
    """The finaliser of SplitMix64, in whole numbers."""
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & MASK64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & MASK64
    return z ^ (z >> 31)


def kept_entries(seed: int, row: int, n_rotated: int, sketch_size: int, shared: list[int]) -> list[int]:
    """Floyd's sampling of the free coordinates (or, if they are fewer, of those to leave out), plus the shared."""
    free = [p for p in range(n_rotated) if p not in shared]
    keep = sketch_size - len(shared)
    leave_out = len(free) - keep
    n = min(keep, leave_out)
    counter = mix64((seed + row * GAMMA) & MASK64)
    drawn: set[int] = set()
    for j in range(n):
        last = len(free) - n + j
        unit = (mix64((counter + (j + 1) * GAMMA) & MASK64) >> 12) / 2**52
        candidate = free[int(unit * (last + 1))]
        drawn.add(free[last] if candidate in drawn else candidate)
    chosen = drawn if keep <= leave_out else set(free) - drawn
    return sorted([*shared, *chosen])


# -- rotations --------------------------------------------------------------------------------------------


def hadamard_matrix(n: int) -> Array:
    """Sylvester's construction, orthonormal."""
    if n == 1:
        return np.ones((1, 1))
    half = hadamard_matrix(n // 2)
    return np.block([[half, half], [half, -half]]) / np.sqrt(2)


def cosine_matrix(n: int) -> Array:
    """The orthonormal DCT-II by its definition."""
    k, j = np.arange(n)[:, None], np.arange(n)[None, :]
    matrix = np.sqrt(2 / n) * np.cos(np.pi * k * (2 * j + 1) / (2 * n))
    matrix[0] = 1 / np.sqrt(n)
    return matrix


def hartley_matrix(n: int) -> Array:
    """The orthonormal discrete Hartley transform by its definition."""
    angle = 2 * np.pi * np.outer(np.arange(n), np.arange(n)) / n
    return (np.cos(angle) + np.sin(angle)) / np.sqrt(n)


def mixing_matrix(transform: str, n: int) -> Array:
    """H for rows of n entries that need no padding."""
    if transform == "none":
        return np.eye(n)
    if transform == "dct":
        return cosine_matrix(n)
    if transform == "fourier":
        return hartley_matrix(n)
    odd = n
    while odd % 2 == 0:
        odd //= 2
    return np.kron(hadamard_matrix(n // odd), cosine_matrix(odd))


# -- the covariance of a sketch ---------------------------------------------------------------------------


def covariance(
    values: Array, indices: NDArray[np.integer], shared: list[int], centre: Array, frame: Array
) -> Array:
    """Unbiased over the draw of the kept entries: each product is divided by how probable it was to be seen.

    `frame` is H D, (n_rotated, n_features); `centre` is in the rotated frame.
    """
    n, q = values.shape
    free, kept = len(frame) - len(shared), q - len(shared)

    def probability(entries: set[int]) -> float:
        drawn = len(entries - set(shared))
        return float(np.prod([(kept - i) / (free - i) for i in range(drawn)]))

    same_row, rows = np.zeros((len(frame), len(frame))), np.zeros((n, len(frame)))
    for i in range(n):
        for x, p in zip(values[i], indices[i].tolist(), strict=True):
            rows[i, p] = (x - centre[p]) / probability({p})
            for y, other in zip(values[i], indices[i].tolist(), strict=True):
                same_row[p, other] += (x - centre[p]) * (y - centre[other]) / probability({p, other})
    of_different_rows = sum(np.outer(rows[i], rows[j]) for i in range(n) for j in range(n) if i != j)
    return frame.T @ (same_row / n - (same_row + of_different_rows) / n**2) @ frame


# -- mixtures on kept entries -----------------------------------------------------------------------------
# A row is its kept values x and their coordinates R; means are (K, P), variances (K, P).


def log_density(x: Array, kept: NDArray[np.integer], means: Array, variances: Array) -> Array:
    """log N(x; mu_R, S_R) of one row under each component."""
    out = []
    for mean, variance in zip(means, variances, strict=True):
        total = 0.0
        for value, p in zip(x, kept, strict=True):
            total += -0.5 * (np.log(2 * np.pi * variance[p]) + (value - mean[p]) ** 2 / variance[p])
        out.append(total)
    return np.array(out)


def joint_log_density(
    values: Array, indices: NDArray[np.integer], weights: Array, means: Array, variances: Array
) -> Array:
    """log pi_k + log density, for every row and component."""
    rows = [log_density(x, kept, means, variances) for x, kept in zip(values, indices, strict=True)]
    return np.log(weights) + np.array(rows).reshape(len(values), len(weights))


def latent_moments(
    x: Array, kept: NDArray[np.integer], mean: Array, factors: Array, noise: float
) -> tuple[Array, Array]:
    """E[z] and Cov z given the kept entries of a row of mean + W z + noise, by conditioning the joint Gaussian."""
    w = factors[kept]
    gain = w.T @ np.linalg.inv(w @ w.T + noise * np.eye(len(kept)))
    return gain @ (x - mean[kept]), np.eye(factors.shape[1]) - gain @ w


def responsibilities(joint: Array) -> Array:
    """r_ik."""
    shifted = np.exp(joint - joint.max(axis=1, keepdims=True))
    return shifted / shifted.sum(axis=1, keepdims=True)


def log_likelihood(joint: Array) -> Array:
    """Of each row."""
    top = joint.max(axis=1)
    return top + np.log(np.exp(joint - top[:, None]).sum(axis=1))


def nearest(values: Array, indices: NDArray[np.integer], centers: Array) -> NDArray[np.intp]:
    """argmin_k ||x_R - mu_k,R||."""
    distances = [[((x - c[kept]) ** 2).sum() for c in centers] for x, kept in zip(values, indices, strict=True)]
    return np.array(distances).argmin(axis=1)


def weighted_moments(
    values: Array, indices: NDArray[np.integer], r: Array, means: Array
) -> tuple[Array, Array, Array]:
    """For each component and coordinate: sums of r, r (x - mean), r (x - mean)^2 over the rows that kept it."""
    count, first, second = np.zeros_like(means), np.zeros_like(means), np.zeros_like(means)
    for x, kept, ri in zip(values, indices, r, strict=True):
        for value, p in zip(x, kept, strict=True):
            d = value - means[:, p]
            count[:, p] += ri
            first[:, p] += ri * d
            second[:, p] += ri * d**2
    return count, first, second


def m_step(
    values: Array,
    indices: NDArray[np.integer],
    r: Array,
    means: Array,
    variances: Array,
    *,
    spherical: bool,
    support: float = 2.0,
) -> tuple[Array, Array, Array]:
    """The paper's maximum likelihood estimators.

    What no row kept stays as it was; and so does a variance where rows of less than `support` (what two rows
    weigh) kept a coordinate, while others of the component did not.
    """
    count, total, _ = weighted_moments(values, indices, r, np.zeros_like(means))
    new_means = np.where(count > 0, total / np.where(count > 0, count, 1), means)
    _, _, scatter = weighted_moments(values, indices, r, new_means)
    if spherical:
        new_variances = np.tile((scatter.sum(axis=1) / count.sum(axis=1))[:, None], means.shape[1])
    else:
        known = (count >= support) | np.isclose(count, r.sum(axis=0)[:, None], rtol=1e-6, atol=0)
        new_variances = np.where(known & (count > 0), scatter / np.where(count > 0, count, 1), variances)
    return r.sum(axis=0) / r.sum(), new_means, new_variances


# -- mixtures with any covariances, on kept entries -------------------------------------------------------
# Covariances are (K, P, P).


def full_joint_log_density(
    values: Array, indices: NDArray[np.integer], weights: Array, means: Array, covariances: Array
) -> Array:
    """log pi_k + log N(x; mu_R, S_R), for every row and component."""
    out = np.zeros((len(values), len(weights)))
    for i, (x, kept) in enumerate(zip(values, indices, strict=True)):
        for k, (mean, S) in enumerate(zip(means, covariances, strict=True)):
            block, d = S[np.ix_(kept, kept)], x - mean[kept]
            log_determinant = np.linalg.slogdet(2 * np.pi * block)[1]
            out[i, k] = np.log(weights[k]) - 0.5 * (log_determinant + d @ np.linalg.solve(block, d))
    return out


def full_sums(
    values: Array, indices: NDArray[np.integer], r: Array, means: Array, covariances: Array
) -> tuple[Array, Array, Array]:
    """For each component, with Lambda = R (S_R)^-1 R^T: sums of r Lambda (x - mean), of r Lambda, and of
    r Lambda (x - mean) (x - mean)^T Lambda."""
    gradient, precision, outer = np.zeros_like(means), np.zeros_like(covariances), np.zeros_like(covariances)
    for x, kept, ri in zip(values, indices, r, strict=True):
        for k, (mean, S) in enumerate(zip(means, covariances, strict=True)):
            inverse, deviation = np.zeros_like(S), np.zeros_like(mean)
            inverse[np.ix_(kept, kept)] = np.linalg.inv(S[np.ix_(kept, kept)])
            deviation[kept] = x - mean[kept]
            u = inverse @ deviation
            gradient[k] += ri[k] * u
            precision[k] += ri[k] * inverse
            outer[k] += ri[k] * np.outer(u, u)
    return gradient, precision, outer


def full_m_step(
    values: Array, indices: NDArray[np.integer], r: Array, means: Array, covariances: Array, *, tied: bool
) -> tuple[Array, Array, Array]:
    """Means and scatters of rows completed by their conditional expectations given what was kept."""
    n, (k, p) = r.sum(axis=0), means.shape
    completed, hidden = np.zeros((k, len(values), p)), np.zeros((k, len(values), p, p))
    for c in range(k):
        for i, (x, kept) in enumerate(zip(values, indices, strict=True)):
            regression = covariances[c][:, kept] @ np.linalg.inv(covariances[c][np.ix_(kept, kept)])
            completed[c, i] = means[c] + regression @ (x - means[c][kept])
            hidden[c, i] = covariances[c] - regression @ covariances[c][kept]
    new_means = np.array([r[:, c] @ completed[c] / n[c] for c in range(k)])
    gaps = completed - new_means[:, None]
    scatters = np.einsum("ic,cip,ciq->cpq", r, gaps, gaps) + np.einsum("ic,cipq->cpq", r, hidden)
    new_covariances = np.tile(scatters.sum(axis=0) / n.sum(), (k, 1, 1)) if tied else scatters / n[:, None, None]
    return n / n.sum(), new_means, new_covariances


# -- clusterings ------------------------------------------------------------------------------------------


def accuracy(y: NDArray[np.integer], labels: NDArray[np.integer]) -> float:
    """The share of rows that are labelled right, under the best matching of labels to classes."""
    classes, y = np.unique(y, return_inverse=True)
    found, labels = np.unique(labels, return_inverse=True)
    together = np.array(
        [[((y == c) & (labels == k)).sum() for k in range(len(found))] for c in range(len(classes))]
    )
    right: int = together[linear_sum_assignment(together, maximize=True)].sum()
    return right / len(y)
