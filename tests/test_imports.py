"""No file imports another in a circle, not even for its types."""

from __future__ import annotations

import grimp
import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components


def test_files_do_not_import_each_other_in_a_circle() -> None:
    packages = "codl", "codl_original", "codl_phone_compilers", "codl_published"
    graph = grimp.build_graph(*packages, cache_dir=None)
    modules = sorted(graph.modules)
    number = {module: at for at, module in enumerate(modules)}
    arrows = [
        (number[module], number[other])
        for module in modules
        for other in graph.find_modules_directly_imported_by(module)
    ]
    rows, columns = np.array(arrows).T
    matrix = csr_matrix((np.ones(len(arrows)), (rows, columns)), shape=(len(modules),) * 2)
    _, circles = connected_components(matrix, connection="strong")
    shared = np.bincount(circles) > 1
    assert [module for module, circle in zip(modules, circles, strict=True) if shared[circle]] == []
