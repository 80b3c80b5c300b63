"""What there is to say of a sketch and of a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sketchmix import PCA, GaussianMixture, KMeans, Sketcher, load
from sketchmix.stored import read_manifest

Facts = dict[str, Any]
Model = GaussianMixture | KMeans | PCA

# Means of fewer rows are mostly noise: see "Where the method loses".
ENOUGH_ROWS = 30


def of_sketch(folder: Path, n_components: int | None = None) -> Facts:
    """Of the sketch in a folder, complete or not."""
    manifest = read_manifest(folder)
    facts = {
        "sketch": str(folder),
        "rows": manifest.n_rows,
        "first_row": manifest.first_row,
        **of_sketcher(manifest.sketcher),
        "dtype": manifest.dtype.name,
        "seed": manifest.sketcher.random_state,
        "bytes": sum(file.n_bytes for shard in manifest.shards for file in shard.files.values()),
        "shards": len(manifest.shards),
        "rows_per_shard": manifest.rows_per_shard,
        "complete": manifest.complete,
    }
    if n_components is None:
        return facts
    return facts | of_means(manifest.n_rows, manifest.sketcher, n_components)


def of_sketcher(sketcher: Sketcher) -> Facts:
    """Of what sketched the rows."""
    return {
        "features": sketcher.n_features_in_,
        "kept_entries": sketcher.sketch_size_,
        "shared_entries": len(sketcher.shared_indices_),
        "share": sketcher.sketch_size_ / sketcher.n_rotated_,
        "transform": sketcher.transform_,
    }


def of_means(n_rows: int, sketcher: Sketcher, n_components: int) -> Facts:
    """Of what a mean would rest on."""
    rows = n_rows * sketcher.sketch_size_ / sketcher.n_rotated_ / n_components
    facts: Facts = {"components": n_components, "rows_of_a_mean": rows}
    if rows < ENOUGH_ROWS:
        facts["advice"] = (
            f"With {n_components} components, each coordinate of a mean rests on {rows:.2g} rows only. Take "
            "--covariance spherical, fewer components, or a larger --sketch-size."
        )
    return facts


def of_model_at(path: Path) -> Facts:
    """Of a model in a file."""
    return {"model": str(path), **of_model(load(path))}


def of_model(model: Model) -> Facts:
    """Of a fitted model."""
    head = {"kind": type(model).__name__, "seed": model.random_state}
    return head | of_sketcher(model.sketcher_) | of_fit(model)


def of_fit(model: Model) -> Facts:
    """Of what a fit found, and whether it was done."""
    if isinstance(model, KMeans):
        return {"clusters": len(model.cluster_centers_), "iterations": model.n_iter_, "inertia": model.inertia_}
    end = {
        "converged": model.converged_,
        "iterations": model.n_iter_,
        "log_likelihood": float(model.lower_bounds_[-1]),
    }
    if isinstance(model, PCA):
        shares = model.explained_variance_ratio_.tolist()
        return {"components": len(shares), "explained_variance_ratio": shares, **end}
    rank = {"rank": model.factors_.shape[2]} if hasattr(model, "factors_") else {}
    weights = model.weights_.tolist()
    return {"components": len(weights), "covariance": model.covariance_type, **rank, "weights": weights, **end}
