"""Random orthonormal systems: a row times random signs (D), then mixed by an orthonormal matrix (H).

A :class:`Rotation` says four things about ``H D``: its forward map, its inverse (the transpose), what it does
to a diagonal covariance, and the tables by which the core computes *single entries* of a rotated row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property
from math import ceil, log2
from typing import Any, ClassVar

import numpy as np
import scipy.fft
from numpy.typing import NDArray
from scipy.linalg import hadamard

from sketchmix import _core

Array = NDArray[Any]

# The core works on whole vectors of this many entries at most.
LANES = 16
# The largest odd factor of P that is mixed by a dense cosine matrix, and the most entries of a table.
LARGEST_ODD = 255
LARGEST_TABLE = 2**20


class Rotation(ABC):
    """``x -> H D x`` for rows of ``n_features`` entries.

    Parameters
    ----------
    n_features : int
        Entries of a row.
    signs : ndarray of shape (n_features,)
        The diagonal of D, of +1 and -1.
    """

    name: ClassVar[str]

    def __init__(self, n_features: int, signs: Array) -> None:
        self.n_features = n_features
        self.signs = signs
        self._tables: dict[int, _core.Rotation | None] = {}

    @property
    def n_rotated(self) -> int:
        """Entries of a rotated row: `n_features`, or a few more where rows are padded."""
        return self.n_features

    @abstractmethod
    def forward(self, X: Array) -> Array:
        """Rotate the rows of X, in their own floating type."""

    @abstractmethod
    def inverse(self, Y: Array) -> Array:
        """Bring rotated rows back; the transpose of `forward`."""

    @abstractmethod
    def variances(self, rotated: Array) -> Array:
        """The diagonal of ``(H D)^T diag(v) (H D)`` for each row v of `rotated`."""

    def tables(self, sketch_size: int) -> _core.Rotation | None:
        """How the core computes `sketch_size` entries of a rotated row, or None if it should not."""
        if sketch_size not in self._tables:
            self._tables[sketch_size] = self._make_tables(sketch_size)
        return self._tables[sketch_size]

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_tables": {}}

    @abstractmethod
    def _make_tables(self, sketch_size: int) -> _core.Rotation | None: ...


class NoRotation(Rotation):
    """Rows as they are: no mixing, and all signs +1."""

    name = "none"

    def __init__(self, n_features: int, signs: Array) -> None:
        super().__init__(n_features, np.ones_like(signs))

    def forward(self, X: Array) -> Array:
        return X.copy()

    def inverse(self, Y: Array) -> Array:
        return Y.copy()

    def variances(self, rotated: Array) -> Array:
        return rotated.copy()

    def _make_tables(self, sketch_size: int) -> _core.Rotation:  # noqa: ARG002
        return copy_tables(self.n_rotated)


class HadamardRotation(Rotation):
    """``H(2^a) (x) C(b)``: a Hadamard matrix, and an orthonormal cosine matrix for the odd factor of P.

    784 = 16 * 49 needs no padding. A P whose odd factor is above `LARGEST_ODD` is padded to the next size whose
    odd factor is not, which is less than 1% more.
    """

    name = "hadamard"

    @cached_property
    def n_rotated(self) -> int:
        if odd_part(self.n_features) <= LARGEST_ODD:
            return self.n_features
        step = 1 << ceil(log2(self.n_features / LARGEST_ODD))
        return ceil(self.n_features / step) * step

    @cached_property
    def _factors(self) -> list[Array]:
        """Orthonormal matrices whose Kronecker product is H; small, so that BLAS applies each quickly."""
        odd = odd_part(self.n_rotated)
        exponent = int(log2(self.n_rotated // odd))
        sizes = [2 ** min(5, exponent - done) for done in range(0, exponent, 5)]
        return [hadamard(size) / np.sqrt(size) for size in sizes] + [cosine_matrix(odd)]

    def forward(self, X: Array) -> Array:
        # As the core sketches: BLAS rounds a row as its place among the others has it, this as the row alone.
        rotated = np.empty((len(X), self.n_rotated), X.dtype)
        every, none = np.arange(self.n_rotated, dtype=np.uint32), np.empty(0, np.uint32)
        tables = self.tables(self.n_rotated)
        assert tables is not None  # noqa: S101 - of this transform there always are
        _core.sketch(np.ascontiguousarray(X), tables, 0, 0, every, none, rotated, None)
        return rotated

    def inverse(self, Y: Array) -> Array:
        rows = apply_kronecker([factor.T for factor in self._factors], Y)[:, : self.n_features]
        rows *= self.signs.astype(Y.dtype)
        return rows

    def variances(self, rotated: Array) -> Array:
        return apply_kronecker([factor.T**2 for factor in self._factors], rotated)[:, : self.n_features]

    def _make_tables(self, sketch_size: int) -> _core.Rotation:
        odd = odd_part(self.n_rotated)
        lead = self._cheapest_lead(sketch_size)
        run = self.n_rotated // lead
        leaf = np.kron(hadamard(run // odd), cosine_matrix(odd)) / np.sqrt(self.n_rotated / odd)
        coefficients = np.zeros((run, whole_vectors(run)))
        coefficients[:, :run] = leaf
        block, row = np.divmod(np.arange(self.n_rotated), run)
        return _core.Rotation(
            n_features=self.n_features,
            n_rotated=self.n_rotated,
            lead=lead,
            run=run,
            stride=coefficients.shape[1],
            terms=1,
            signs=laid_out(self.signs, lead, run).astype(float),
            order=None,
            mix=None,
            segment=(block * coefficients.shape[1]).astype(np.uint32),
            coefficient=(row * coefficients.shape[1]).astype(np.uint32),
            coefficients=coefficients,
        )

    def _cheapest_lead(self, sketch_size: int) -> int:
        """How many runs the butterflies mix: their work falls with it, that of the kept entries rises."""
        odd = odd_part(self.n_rotated)

        def vector_operations(lead: int) -> float:
            vectors = whole_vectors(self.n_rotated // lead) / LANES
            return lead * vectors * (2 + log2(lead)) + sketch_size * (6 + 3 * vectors)

        leads = [1 << i for i in range(int(log2(self.n_rotated // odd)) + 1)]
        fitting = [lead for lead in leads if (self.n_rotated // lead) ** 2 <= LARGEST_TABLE]
        return min(fitting, key=vector_operations)


class LibraryRotation(Rotation):
    """A fast transform that a library has."""

    def forward(self, X: Array) -> Array:
        return self._mix(X * self.signs.astype(X.dtype))

    def inverse(self, Y: Array) -> Array:
        rows: Array = self._unmix(Y) * self.signs.astype(Y.dtype)
        return rows

    @abstractmethod
    def _mix(self, X: Array) -> Array: ...

    @abstractmethod
    def _unmix(self, Y: Array) -> Array: ...


class CosineRotation(LibraryRotation):
    """The orthonormal DCT-II."""

    name = "dct"

    def variances(self, rotated: Array) -> Array:
        # H_kj^2 = (1 + cos(2 pi k (2j + 1) / 2P)) / P for k > 0: a cosine series in the doubled frequency,
        # in which 2k > P is -(2P - 2k) and 2k = P is zero everywhere.
        n = self.n_features
        doubled = np.zeros_like(rotated)
        k = np.arange(1, n)
        low, high = k[2 * k < n], k[2 * k > n]
        doubled[:, 2 * low] += rotated[:, low]
        doubled[:, 2 * n - 2 * high] -= rotated[:, high]
        series = scipy.fft.dct(doubled, type=3, axis=1) / 2
        variances: Array = rotated.mean(axis=1, keepdims=True) + series / n
        return variances

    def _mix(self, X: Array) -> Array:
        return scipy.fft.dct(X, type=2, norm="ortho", axis=1)

    def _unmix(self, Y: Array) -> Array:
        return scipy.fft.idct(Y, type=2, norm="ortho", axis=1)

    def _make_tables(self, sketch_size: int) -> _core.Rotation | None:
        # Makhoul: the DCT of x is the real part of a DFT of its even entries followed by its odd ones reversed.
        n = self.n_features
        scale = np.full((n, 1), np.sqrt(2 / n))
        scale[0] = np.sqrt(1 / n)

        def coefficients(k: Array, j: Array) -> tuple[Array, Array]:
            angle = np.pi * k / (2 * n) + 2 * np.pi * (k * j % n) / n
            return scale * np.cos(angle), scale * np.sin(angle)

        order = np.concatenate([np.arange(0, n, 2), np.arange(1, n, 2)[::-1]]).astype(np.uint32)
        return fourier_tables(n, sketch_size, self.signs, order, coefficients)


class FourierRotation(LibraryRotation):
    """The real orthonormal form of the Fourier transform: the discrete Hartley transform, its own inverse."""

    name = "fourier"

    def variances(self, rotated: Array) -> Array:
        # H_kj^2 = (1 + sin(4 pi k j / P)) / P.
        n = self.n_features
        sines = -scipy.fft.fft(rotated, axis=1).imag
        variances: Array = rotated.mean(axis=1, keepdims=True) + sines[:, 2 * np.arange(n) % n] / n
        return variances

    def _mix(self, X: Array) -> Array:
        n = self.n_features
        half = scipy.fft.rfft(X, axis=1, norm="ortho")
        out = np.empty_like(X)
        out[:, : half.shape[1]] = half.real - half.imag
        mirrored = half[:, 1 : n - half.shape[1] + 1][:, ::-1]
        out[:, half.shape[1] :] = mirrored.real + mirrored.imag
        return out

    def _unmix(self, Y: Array) -> Array:
        return self._mix(Y)

    def _make_tables(self, sketch_size: int) -> _core.Rotation | None:
        n = self.n_features

        def coefficients(k: Array, j: Array) -> tuple[Array, Array]:
            angle = 2 * np.pi * (k * j % n) / n
            cosine, sine = np.cos(angle) / np.sqrt(n), np.sin(angle) / np.sqrt(n)
            return cosine + sine, sine - cosine

        return fourier_tables(n, sketch_size, self.signs, None, coefficients)


ROTATIONS: dict[str, type[Rotation]] = {
    kind.name: kind for kind in (HadamardRotation, CosineRotation, FourierRotation, NoRotation)
}


def best_transform(n_features: int, sketch_size: int) -> str:
    """What ``transform="auto"`` means: no mixing where every entry is kept, else the fastest."""
    return "none" if sketch_size == n_features else "hadamard"


def odd_part(n: int) -> int:
    """The odd factor of n."""
    return n // (n & -n)


def whole_vectors(n: int) -> int:
    """`n` rounded up to whole vectors."""
    return -(-n // LANES) * LANES


def laid_out(entries: Array, lead: int, run: int) -> Array:
    """`lead` runs of `run` entries, each followed by zeros up to whole vectors."""
    out = np.zeros((lead, whole_vectors(run)), entries.dtype)
    flat = np.zeros(lead * run, entries.dtype)
    flat[: len(entries)] = entries
    out[:, :run] = flat.reshape(lead, run)
    return out


def cosine_matrix(n: int) -> Array:
    """The orthonormal DCT-II as an n x n matrix."""
    matrix: Array = scipy.fft.dct(np.eye(n), type=2, norm="ortho", axis=0)
    return matrix


def apply_kronecker(factors: list[Array], X: Array) -> Array:
    """``X @ (F1 (x) F2 (x) ...)^T``: each factor is one product along the last axis, which then goes first."""
    n, p = X.shape
    for factor in reversed(factors):
        X = X.reshape(-1, len(factor)) @ factor.T.astype(X.dtype)
        X = X.reshape(n, p // len(factor), len(factor)).swapaxes(1, 2)
    return X.reshape(n, p)


def copy_tables(n_features: int) -> _core.Rotation:
    """Tables that copy the kept entries of a row as they are."""
    nothing = np.zeros(0, np.uint32)
    return _core.Rotation(
        n_features=n_features,
        n_rotated=n_features,
        lead=0,
        run=0,
        stride=0,
        terms=0,
        signs=np.zeros(0),
        order=None,
        mix=None,
        segment=nothing,
        coefficient=nothing,
        coefficients=np.zeros(0),
    )


def fourier_tables(
    n: int,
    sketch_size: int,
    signs: Array,
    order: Array | None,
    coefficients: Callable[[Array, Array], tuple[Array, Array]],
) -> _core.Rotation | None:
    """Entries of a Fourier-type transform by one step of Cooley and Tukey, its second half pruned.

    With ``n = lead * run`` and entry ``m * run + j`` of the row at place (m, j), entry k of the DFT is
    ``sum_j w(k, j) F_j[k mod lead]``, where F_j is the DFT over m of column j. A `lead` x `lead` real matrix
    computes all F_j at once; then a kept entry costs two dot products, of its weights on the real and on the
    imaginary parts of F. `coefficients(k, j)` gives those weights.
    """
    lead = cheapest_split(n, sketch_size)
    if lead is None:
        return None
    run, stride = n // lead, whole_vectors(n // lead)
    k, j = np.arange(n)[:, None], np.arange(run)[None, :]
    real, imaginary = coefficients(k, j)
    # F[lead - f] is the conjugate of F[f]: the real parts of f <= lead/2 are kept, then the imaginary ones.
    frequency = k[:, 0] % lead
    mirrored = frequency > lead - frequency
    low = np.where(mirrored, lead - frequency, frequency)
    self_conjugate = (2 * low) % lead == 0
    imaginary[mirrored] *= -1
    imaginary[self_conjugate] = 0
    table = np.zeros((n, 2, stride))
    table[:, 0, :run], table[:, 1, :run] = real, imaginary
    segment = np.stack([low, np.where(self_conjugate, 0, lead - low)], axis=1) * stride
    f = np.arange(lead)[:, None]
    angle = 2 * np.pi * (f * np.arange(lead) % lead) / lead
    return _core.Rotation(
        n_features=n,
        n_rotated=n,
        lead=lead,
        run=run,
        stride=stride,
        terms=2,
        signs=laid_out(signs if order is None else signs[order], lead, run).astype(float),
        order=None if order is None else laid_out(order, lead, run),
        # Row lead - f holds the imaginary part of F[f], -sin(f m): that is +sin((lead - f) m).
        mix=np.where(2 * f <= lead, np.cos(angle), np.sin(angle)),
        segment=segment.astype(np.uint32),
        coefficient=(np.arange(2 * n, dtype=np.uint32) * stride),
        coefficients=table,
    )


def cheapest_split(n: int, sketch_size: int) -> int | None:
    """The divisor of n to mix by a dense matrix, or None where a fast transform of the whole row is better."""

    def vector_operations(lead: int) -> float:
        vectors = whole_vectors(n // lead) / LANES
        return lead * lead * vectors + sketch_size * (3 + 4 * vectors)

    divisors = [d for d in range(1, n + 1) if n % d == 0] if n <= LARGEST_TABLE else []
    fitting = [d for d in divisors if 2 * n * whole_vectors(n // d) <= LARGEST_TABLE]
    best = min(fitting, key=vector_operations, default=None)
    if best is None or vector_operations(best) > n * log2(n):
        return None
    return best
