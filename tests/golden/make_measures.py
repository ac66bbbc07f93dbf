"""Make ``measures.json``: what independent packages say about seeded arrays, beside the plain float64 formulas.

Run in an environment of its own with numpy, scipy, scikit-learn, torch, statsmodels 0.15, rsatoolbox 0.3.2,
pytorch-cka 1.1.3, ckatorch 1.0.3, cca-zoo 4.0.1 and IsoScore 2.0.1; ``--svcca FOLDER`` adds google/svcca
(cca_core.py and pwcca.py):

    python tests/golden/make_measures.py --svcca FOLDER

Left out on purpose, because known to be wrong: repsim's debiased estimators and SVCCA, torch-cka, ckatorch's ``CKA``
class and its ``method="hsic"``, pytorch-cka's clamped matrix (its ``hsic`` is used), the CCA of BERT-similarity, and
google/svcca's PWCCA on layers that are not white (its variates lack the whitening; on white layers they are right).

``arrays`` and the ``plain_*`` formulas need numpy only, and the tests use them too.
"""

import argparse
import json
import sys
import warnings
from pathlib import Path

import numpy as np

RECIPES = {
    "related": {"seed": 1, "n": 200, "p": 20, "q": 30, "signal": 0.3},
    "offset": {"seed": 2, "n": 150, "p": 12, "q": 12, "signal": 0.5, "offset": 3.0},
    "unrelated": {"seed": 3, "n": 300, "p": 40, "q": 25, "signal": 0.0},
    "wide": {"seed": 4, "n": 60, "p": 100, "q": 80, "signal": 0.2},
    "outlier": {"seed": 5, "n": 256, "p": 33, "q": 33, "signal": 0.0, "outlier": 50.0},
    "white": {"seed": 6, "n": 200, "p": 15, "q": 24, "signal": 0.4, "white": True},
}
TALL = ("related", "offset", "unrelated", "outlier", "white")
K, FOLDS = 10, 5


def arrays(seed, n, p, q, signal, offset=0.0, outlier=0.0, white=False):
    """Two arrays: Y = signal X A + noise, an offset, a dimension both share, or a whitened X."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, p)) * np.linspace(0.5, 2.0, p) + offset
    y = signal * x @ rng.standard_normal((p, q)) + rng.standard_normal((n, q))
    if outlier:
        shared = outlier * rng.standard_normal(n)
        x[:, 3], y[:, 5] = shared, shared
    if white:
        x = x - x.mean(axis=0)
        x = x @ np.linalg.inv(np.linalg.cholesky(np.cov(x.T))).T
        y = y - y.mean(axis=0)
    return x, y


def fold_labels(n):
    """Five groups of equal size (to one sample): as groups they fix the folds, whatever the shuffle."""
    return np.arange(n) * FOLDS // n


# ---------------------------------------------------------------- plain formulas, float64, one step at a time


def plain_hsic1(k, l):  # noqa: E741
    """Song et al. 2012, eq. 5, on n x n kernels."""
    n = len(k)
    k, l = k - np.diag(np.diag(k)), l - np.diag(np.diag(l))  # noqa: E741
    one = np.ones(n)
    middle = (one @ k @ one) * (one @ l @ one) / ((n - 1) * (n - 2))
    return (np.trace(k @ l) + middle - 2 / (n - 2) * (one @ k @ l @ one)) / (n * (n - 3))


def plain_hsic0(k, l):  # noqa: E741
    h = np.eye(len(k)) - 1 / len(k)
    return np.trace(k @ h @ l @ h) / (len(k) - 1) ** 2


def plain_cka(k, l, debiased):  # noqa: E741
    hsic = plain_hsic1 if debiased else plain_hsic0
    return hsic(k, l) / np.sqrt(hsic(k, k) * hsic(l, l))


def plain_rbf_kernel(x):
    squared = np.array([[np.sum((a - b) ** 2) for b in x] for a in x])
    return np.exp(-squared / (2 * np.median(squared[np.triu_indices(len(x), 1)])))


def plain_correlations(x, y):
    """Canonical correlations as eigenvalues of Sxx^-1 Sxy Syy^-1 Syx, the textbook way."""
    x, y = x - x.mean(0), y - y.mean(0)
    r = min(x.shape[1], y.shape[1])
    product = np.linalg.solve(x.T @ x, x.T @ y) @ np.linalg.solve(y.T @ y, y.T @ x)
    return np.sqrt(np.sort(np.linalg.eigvals(product).real)[::-1][:r])


def plain_top_directions(x, keep=0.99):
    x = x - x.mean(0)
    values, vectors = np.linalg.eigh(x.T @ x)
    values, vectors = values[::-1], vectors[:, ::-1]
    count = next(i for i in range(1, len(values) + 1) if values[:i].sum() >= keep * values.sum())
    return x @ vectors[:, :count]


def plain_pwcca(x, y):
    """Morcos et al. 2018: weights from the variates X a."""
    x, y = x - x.mean(0), y - y.mean(0)
    r = min(x.shape[1], y.shape[1])
    values, a = np.linalg.eig(np.linalg.solve(x.T @ x, x.T @ y) @ np.linalg.solve(y.T @ y, y.T @ x))
    order = np.argsort(-values.real)[:r]
    variates = x @ a[:, order].real
    variates = variates / np.linalg.norm(variates, axis=0)
    weights = np.abs(variates.T @ x).sum(axis=1)
    return np.sum(weights * np.sqrt(values.real[order])) / weights.sum()


def plain_procrustes(x, y):
    x, y = x - x.mean(0), y - y.mean(0)
    return np.arccos(np.linalg.norm(x.T @ y, "nuc") / (np.linalg.norm(x) * np.linalg.norm(y)))


def plain_neighbours(x, k):
    """Each sample's k nearest by cosine, as sets; no ties in random data."""
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    order = np.argsort(-(unit @ unit.T) + 10 * np.eye(len(x)), axis=1)
    return [set(row[:k]) for row in order.tolist()]


def plain_mutual(x, y, k):
    pairs = zip(plain_neighbours(x, k), plain_neighbours(y, k), strict=True)
    return np.mean([len(a & b) / k for a, b in pairs])


def plain_jaccard(x, y, k):
    pairs = zip(plain_neighbours(x, k), plain_neighbours(y, k), strict=True)
    return np.mean([len(a & b) / len(a | b) for a, b in pairs])


def plain_cknna(x, y, k):
    """Huh et al. 2024, appendix A, sum by sum."""

    def alignment(x, y):
        x, y = (z / np.linalg.norm(z, axis=1, keepdims=True) for z in (x, y))
        near_x, near_y, total = plain_neighbours(x, k), plain_neighbours(y, k), 0.0
        for i in range(len(x)):
            mean_x, mean_y = np.mean(x @ x[i]), np.mean(y @ y[i])
            for j in near_x[i] & near_y[i]:
                total += (x[i] @ x[j] - mean_x) * (y[i] @ y[j] - mean_y)
        return total

    return alignment(x, y) / np.sqrt(alignment(x, x) * alignment(y, y))


def plain_regression(x, y, labels, ridge):
    """Normal equations fold by fold; for ridge the penalty of least GCV by the explicit hat matrix."""
    missed = total = 0.0
    for label in np.unique(labels):
        held = labels == label
        mean, offset = x[~held].mean(0), y[~held].mean(0)
        xt, yt = x[~held] - mean, y[~held] - offset
        penalty = 0.0
        if ridge:
            # I - H = λ (X Xᵀ + λ)⁻¹; its eigenvector of ones is the mean, which is fitted too and left out
            values, vectors = np.linalg.eigh(xt @ xt.T)
            values = np.where(values > 1e-12 * values[-1], values, 0.0)
            kept = slice(1, None) if values[1] > 0 else slice(None)
            less = 0 if values[1] > 0 else 1
            top, targets, scored = values[-1], (vectors.T @ yt)[kept], []
            for share in np.logspace(-10, 2, 37):
                left = share * top / (values[kept] + share * top)
                loss = np.sum((left[:, None] * targets) ** 2) / (left.sum() - less) ** 2
                scored.append((loss, share * top))
            penalty = min(scored)[1]
        w = np.linalg.solve(xt.T @ xt + penalty * np.eye(x.shape[1]), xt.T @ yt)
        missed += np.sum((y[held] - offset - (x[held] - mean) @ w) ** 2)
        total += np.sum((y[held] - offset) ** 2)
    return 1 - missed / total


def plain_iso_score(x):
    """Rudman et al. 2022, algorithm 1."""
    p = x.shape[1]
    diagonal = np.linalg.eigvalsh(np.cov(x.T))
    diagonal = diagonal / np.linalg.norm(diagonal) * np.sqrt(p)
    delta = np.linalg.norm(diagonal - np.ones(p)) / np.sqrt(2 * (p - np.sqrt(p)))
    phi = (p - delta**2 * (p - np.sqrt(p))) ** 2 / p**2
    return (p * phi - 1) / (p - 1)


def plain_effective_rank(x):
    s = np.sqrt(np.maximum(np.linalg.eigvalsh((x - x.mean(0)) @ (x - x.mean(0)).T), 0))
    s = s[s > 1e-6 * s.max()]
    return np.exp(-np.sum(s / s.sum() * np.log(s / s.sum())))


# ---------------------------------------------------------------- packages


def cka_values(x, y):
    import torch
    from cka.hsic import hsic
    from ckatorch.core import cka_base
    from rsatoolbox.data import Dataset
    from rsatoolbox.rdm import calc_rdm, compare
    from sklearn.metrics.pairwise import rbf_kernel
    from sklearn.preprocessing import KernelCenterer

    tx, ty = torch.from_numpy(x), torch.from_numpy(y)

    def by_hsic(k, l):  # noqa: E741
        xy, xx, yy = hsic(torch.from_numpy(k)[None], torch.from_numpy(l)[None])
        return (xy[0, 0] / (xx[0] * yy[0]).sqrt()).item()

    def kernel(z):
        squared = np.sum((z[:, None] - z[None]) ** 2, axis=2)
        return rbf_kernel(z, gamma=1 / (2 * np.median(squared[np.triu_indices(len(z), 1)])))

    def centred(k):
        return KernelCenterer().fit_transform(k).ravel()

    rdms = [calc_rdm(Dataset(z), method="euclidean") for z in (x, y)]
    kx, ky = kernel(x), kernel(y)
    cx, cy = centred(kx), centred(ky)
    rx, ry = plain_rbf_kernel(x), plain_rbf_kernel(y)
    return {
        "linear_cka": {
            "pytorch-cka": by_hsic(x @ x.T, y @ y.T),
            "ckatorch": cka_base(tx, ty, "linear", unbiased=True).item(),
            "formula": plain_cka(x @ x.T, y @ y.T, True),
        },
        "linear_cka_biased": {
            "ckatorch": cka_base(tx, ty, "linear").item(),
            "rsatoolbox": compare(*rdms, method="cosine_cov").item(),
            "formula": plain_cka(x @ x.T, y @ y.T, False),
        },
        "rbf_cka": {
            "scikit-learn kernels, pytorch-cka": by_hsic(kx, ky),
            "formula": plain_cka(rx, ry, True),
        },
        "rbf_cka_biased": {
            "scikit-learn": cx @ cy / np.sqrt((cx @ cx) * (cy @ cy)),
            "formula": plain_cka(rx, ry, False),
        },
    }


def cca_values(x, y, svcca_folder, white):
    from cca_zoo.linear import CCA
    from sklearn.decomposition import PCA
    from statsmodels.multivariate.cancorr import CanCorr

    def statsmodels(x, y):
        return np.asarray(CanCorr(y, x).cancorr)[: min(x.shape[1], y.shape[1])]

    def zoo(x, y):
        # as correlations of the scores, so that the package's own centring and scaling are in
        model = CCA(n_components=min(x.shape[1], y.shape[1])).fit([x, y])
        a, b = model.transform([x, y])
        return a, np.array([np.corrcoef(a[:, i], b[:, i])[0, 1] for i in range(a.shape[1])])

    def weigh(variates, rho):
        variates = variates - variates.mean(0)
        weights = np.abs((variates / np.linalg.norm(variates, axis=0)).T @ (x - x.mean(0))).sum(1)
        return weights @ rho / weights.sum()

    fit = CanCorr(y, x)
    r = min(x.shape[1], y.shape[1])
    scores, rho_zoo = zoo(x, y)
    rho = statsmodels(x, y)
    top = [PCA(n_components=0.99, svd_solver="full").fit_transform(z) for z in (x, y)]
    values = {
        "cca": {"statsmodels": rho.mean(), "cca-zoo": rho_zoo.mean(), "formula": plain_correlations(x, y).mean()},
        "cca_r2": {
            "statsmodels": (rho**2).mean(),
            "cca-zoo": (rho_zoo**2).mean(),
            "formula": (plain_correlations(x, y) ** 2).mean(),
        },
        "svcca": {
            "scikit-learn PCA, statsmodels": statsmodels(*top).mean(),
            "scikit-learn PCA, cca-zoo": zoo(*top)[1].mean(),
            "formula": plain_correlations(plain_top_directions(x), plain_top_directions(y)).mean(),
        },
        "pwcca": {
            "statsmodels": weigh((x - x.mean(0)) @ np.asarray(fit.x_cancoef)[:, :r], rho),
            "cca-zoo": weigh(scores, rho_zoo),
            "formula": plain_pwcca(x, y),
        },
    }
    if white and svcca_folder:
        sys.path.insert(0, svcca_folder)
        from pwcca import compute_pwcca

        values["pwcca"]["google/svcca"] = compute_pwcca(x.T, y.T)[0]
    return values


def other_values(x, y):
    import torch
    from rsatoolbox.data import Dataset
    from rsatoolbox.rdm import calc_rdm, compare
    from scipy.linalg import orthogonal_procrustes
    from scipy.spatial import procrustes
    from scipy.spatial.distance import pdist
    from scipy.stats import pearsonr, spearmanr
    from sklearn.metrics.pairwise import cosine_similarity
    from sklearn.neighbors import NearestNeighbors

    width = max(x.shape[1], y.shape[1])
    padded = [np.pad(z - z.mean(0), ((0, 0), (0, width - z.shape[1]))) for z in (x, y)]
    disparity = procrustes(*padded)[2]
    scale = orthogonal_procrustes(*padded)[1] / (np.linalg.norm(padded[0]) * np.linalg.norm(padded[1]))

    def rdms(method):
        return [calc_rdm(Dataset(z), method=method) for z in (x, y)]

    def near(z):
        found = NearestNeighbors(n_neighbors=K, metric="cosine", algorithm="brute").fit(z).kneighbors()[1]
        return [set(row) for row in found.tolist()]

    pairs = list(zip(near(x), near(y), strict=True))
    # rsatoolbox's "euclidean" is the squared distance over p: its root ranks alike
    return {
        "procrustes": {
            "scipy.spatial": np.arccos(np.sqrt(1 - disparity)),
            "scipy.linalg": np.arccos(scale),
            "formula": plain_procrustes(x, y),
        },
        "rsa": {
            "rsatoolbox": compare(*rdms("correlation"), method="spearman").item(),
            "scipy": spearmanr(pdist(x, "correlation"), pdist(y, "correlation"))[0],
        },
        "rsa_pearson": {
            "rsatoolbox": compare(*rdms("correlation"), method="corr").item(),
            "scipy": pearsonr(pdist(x, "correlation"), pdist(y, "correlation"))[0],
        },
        "rsa_cosine": {
            "scipy": pearsonr(pdist(x, "cosine"), pdist(y, "cosine"))[0],
            "scikit-learn": pearsonr(
                *((1 - cosine_similarity(z))[np.triu_indices(len(z), 1)] for z in (x, y)),
            )[0],
        },
        "rsa_euclidean": {
            "rsatoolbox": compare(*rdms("euclidean"), method="spearman").item(),
            "scipy": spearmanr(pdist(x), pdist(y))[0],
        },
        "mutual_knn": {
            "scikit-learn": np.mean([len(a & b) / K for a, b in pairs]),
            "formula": plain_mutual(x, y, K),
        },
        "neighbourhood_jaccard": {
            "scikit-learn": np.mean([len(a & b) / len(a | b) for a, b in pairs]),
            "formula": plain_jaccard(x, y, K),
        },
        "cknna": {"formula": plain_cknna(x, y, K)},
    } | (
        {
            "tokenwise_cosine": {
                "scikit-learn": np.diag(cosine_similarity(x, y)).mean(),
                "torch": torch.nn.functional.cosine_similarity(torch.from_numpy(x), torch.from_numpy(y)).mean().item(),
            }
        }
        if x.shape[1] == y.shape[1]
        else {}
    )


def regression_values(x, y, tall):
    import statsmodels.api as sm
    from sklearn.linear_model import LinearRegression, Ridge
    from sklearn.model_selection import PredefinedSplit, cross_val_predict

    labels = fold_labels(len(x))
    values = {"ridge_r2": {"formula": plain_regression(x, y, labels, True)}}
    split = PredefinedSplit(labels)

    def r2(predicted):
        base = np.concatenate([y[test] - y[train].mean(0) for train, test in split.split()])
        return 1 - np.sum((y - predicted) ** 2) / np.sum(base**2)

    penalised = np.empty_like(y)
    for train, test in split.split():
        s = np.linalg.svd(x[train] - x[train].mean(0), compute_uv=False)
        s = s[s > 1e-9 * s[0]]
        scored = []
        for share in np.logspace(-10, 2, 37):
            fit = Ridge(alpha=share * s[0] ** 2, solver="svd").fit(x[train], y[train])
            freedom = len(train) - 1 - len(s) + np.sum(share * s[0] ** 2 / (s**2 + share * s[0] ** 2))
            loss = np.sum((y[train] - fit.predict(x[train])) ** 2) / freedom**2
            scored.append((loss, share, fit))
        penalised[test] = min(scored, key=lambda item: item[:2])[2].predict(x[test])
    values["ridge_r2"]["scikit-learn Ridge"] = r2(penalised)
    if tall:
        least = np.empty_like(y)
        for train, test in split.split():
            for column in range(y.shape[1]):
                fit = sm.OLS(y[train, column], sm.add_constant(x[train], has_constant="add")).fit()
                least[test, column] = fit.predict(sm.add_constant(x[test], has_constant="add"))
        values["regression_r2"] = {
            "scikit-learn": r2(cross_val_predict(LinearRegression(), x, y, cv=split)),
            "statsmodels": r2(least),
            "formula": plain_regression(x, y, labels, False),
        }
    return values


def geometry_values(x):
    import torch
    from IsoScore.IsoScore import IsoScore
    from scipy.stats import entropy
    from sklearn.metrics.pairwise import cosine_similarity
    from sklearn.preprocessing import StandardScaler

    n = len(x)
    singular = torch.linalg.svdvals(torch.from_numpy(x - x.mean(0))).numpy()
    singular = singular[singular > 1e-9]
    cosines = cosine_similarity(x)
    variances = StandardScaler().fit(x).var_
    lengths = torch.linalg.vector_norm(torch.from_numpy(x), dim=1)
    return {
        "effective_rank": {"scipy, torch": np.exp(entropy(singular)), "formula": plain_effective_rank(x)},
        "iso_score": {"IsoScore": IsoScore(x).item(), "formula": plain_iso_score(x)},
        "mean_cosine": {"scikit-learn": cosines[~np.eye(n, dtype=bool)].mean()},
        "top_dimension_share": {"scikit-learn": variances.max() / variances.sum(), "formula": np.var(x, 0).max()
                                / np.var(x, 0).sum()},
        "mean_norm": {"torch": lengths.mean().item(), "formula": np.mean([np.sqrt(row @ row) for row in x])},
        "norm_spread": {"torch": (lengths.std(correction=0) / lengths.mean()).item()},
    }  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--svcca", help="folder with google/svcca's cca_core.py and pwcca.py")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    cases = {}
    for name, recipe in RECIPES.items():
        x, y = arrays(**recipe)
        values = cka_values(x, y) | other_values(x, y) | regression_values(x, y, name in TALL)
        if name in TALL:
            values |= cca_values(x, y, options.svcca, name == "white")
        numbers = {
            measure: {package: float(value) for package, value in by.items()}
            for measure, by in (values | {f"geometry/{k}": v for k, v in geometry_values(x).items()}).items()
        }
        cases[name] = {"recipe": recipe, "values": numbers}
    target = Path(__file__).with_name("measures.json")
    target.write_text(json.dumps({"k": K, "folds": FOLDS, "cases": cases}, indent=1) + "\n", encoding="utf-8")
    for name, case in cases.items():
        for measure, by in case["values"].items():
            spread = max(by.values()) - min(by.values())
            print(f"{name:10} {measure:30} {spread:.1e}  " + "  ".join(f"{k} {v:.12f}" for k, v in by.items()))


if __name__ == "__main__":
    main()
