"""Products with a constant matrix as two terms, over the first and the other rows of the matrix.

What is cut is what is summed over: each processor computes a term of all of the output, from its
part of the features alone, and the terms are added where the output is needed (partial sums, as
tensor parallelism has them).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from math import prod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from codl.ir.ops.base import Activation, Op, Values, Weights
from codl.ir.ops.matmul import MatMul
from codl.ir.ops.nd import AXIS_DIMS, Sizes, region_of
from codl.ir.region import Region, Span


@dataclass(frozen=True, kw_only=True)
class Terms(MatMul):
    """Both terms of `a @ matrix` + bias, (2, rows, columns): they are added elsewhere.

    The first is over the first `cut` features of a, the second over the others and with the bias.
    Features may be several axes of a, the last ones; the outermost of them is what is cut.
    """

    cut: int

    sets_cut: ClassVar[bool] = True
    #: What computes one term.
    term: ClassVar[type[MatMul]] = MatMul

    @classmethod
    def of(cls, product: MatMul, shape: Sizes, cut: int) -> Terms:
        """Those of a product whose first operand is seen as `shape`."""
        kept = {field.name: getattr(product, field.name) for field in fields(product) if field.init}
        return cls(**{**kept, "shapes": (shape,), "activation": Activation(), "cut": cut})

    free_axes = (0,)
    dims = ("N",)

    @property
    def problem(self) -> str | None:
        if len(self.matrix) != 2 or self.trans_a or self.activation != Activation():
            return "it multiplies with a constant matrix of two axes, and nothing comes behind."
        if self.depth_axis is None:
            return f"no last axes of {self.shapes[0]} that can be cut are {self.k} features."
        if not 0 < self.cut < self.k or self.cut % self.cut_step:
            return f"cut must be a multiple of {self.cut_step} below {self.k}, got {self.cut}."
        return super().problem

    @property
    def depth_axis(self) -> int | None:
        """The outermost axis of the features; None where they are no last axes."""
        sizes = self.shapes[0]
        axes = range(min(len(sizes), len(AXIS_DIMS)))
        return next((a for a in reversed(axes) if prod(sizes[a:]) == self.k), None)

    @property
    def cut_step(self) -> int:
        """A cut lies on a multiple of this: whole elements of the axis that is cut."""
        sizes, axis = self.shapes[0], self.depth_axis
        return self.k if axis is None else self.k // sizes[axis]

    @property
    def sizes(self) -> tuple[Sizes, Sizes]:
        return (self.m, self.k), self.matrix

    @property
    def m(self) -> int:
        return prod(self.shapes[0]) // self.k

    @property
    def k(self) -> int:
        return self.matrix[1 if self.trans_b else 0]

    @cached_property
    def out_sizes(self) -> Sizes:
        return 2, self.m, self.n

    @property
    def spans(self) -> tuple[Span, Span]:
        """The features of both terms."""
        return Span(0, self.cut), Span(self.cut, self.k)

    def needs(self, part: Region, index: int = 0) -> Region:
        axis = self.depth_axis
        assert axis is not None
        first, last = (self.spans[image] for image in (part.images.start, part.images.stop - 1))
        step = self.k // self.shapes[0][axis]
        return region_of({axis: Span(first.start // step, last.stop // step)}, self.shapes[0])

    def restrict(self, part: Region) -> Op:
        """An ordinary product where it is one term."""
        if part.images.size != 1:
            return self
        return self.term_of(self.spans[part.images.start].size)

    def term_of(self, depth: int) -> Op:
        """The product that is a term over so many features."""
        return self._product((1, self.m), depth)

    @property
    def whole(self) -> Op:
        return self._product((self.m,), self.k)

    def _product(self, rows: Sizes, depth: int) -> MatMul:
        values = {f.name: getattr(self, f.name) for f in fields(self.term) if f.init}
        matrix = (self.n, depth) if self.trans_b else (depth, self.n)
        return self.term(**{**values, "shapes": ((*rows, depth),), "matrix": matrix})

    def restrict_weights(self, weights: Weights, part: Region) -> dict[str, NDArray[Any]]:
        """Rows of the matrix, as views; the bias is the second term's."""
        if part.images.size != 1:
            return dict(weights)
        taken = self._rows_of(weights, self.spans[part.images.start])
        bias = weights["bias"]
        return {**taken, "bias": bias if part.images.start else np.zeros_like(bias)}

    def _rows_of(self, weights: Weights, span: Span) -> dict[str, NDArray[Any]]:
        matrix, rows = weights["weight"], slice(*span)
        return {"weight": matrix[:, rows] if self.trans_b else matrix[rows]}

    def computed(self, inputs: Sequence[Values], weights: Weights) -> Values:
        a, terms = inputs[0].reshape(self.m, self.k), []
        for image, span in enumerate(self.spans):
            part = Region.whole(self.output)._replace(images=Span(image, image + 1))
            term, term_weights = self.restrict(part), self.restrict_weights(weights, part)
            terms.append(term.reference([a[:, slice(*span)].reshape(term.input)], term_weights))
        return np.concatenate(terms)


@dataclass(frozen=True, kw_only=True)
class MatMulTerms(Terms):
    """The terms of a `matmul`."""

    kind: ClassVar[str] = "matmul_terms"
    examples: ClassVar[tuple[str, ...]] = ("matmul_terms in=1x7x32 matrix=32x24 cut=12",)


#: The terms of each kind of product.
TERMS: Mapping[str, type[Terms]] = {MatMul.kind: MatMulTerms}
