"""How far estimates of what nobody measured are off: one dataset's rates against another's rows.

    python scripts/bench/estimates.py --soc host --predictors OLD/predictors

The predictors are of a dataset that lacks some kinds of op, and the rows of one that has them. For
every kernel variant: the estimate over what its whole ops took, at percentiles 10, 50 and 90.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from codl.ir import parse
from codl.ir import soc as socs
from codl.ir.types import PROCESSORS
from codl.measure import dataset as datasets
from codl.measure.dataset import Dataset, OpRow
from codl.plan.coverage import rates_of
from codl.predict.features import is_mulayer
from codl.predict.model_set import load
from codl.predict.names import DEFAULT, FOLDER


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--soc", default="host")
    parser.add_argument("--predictors", type=Path, default=FOLDER)
    parser.add_argument("--dataset", type=Path, default=datasets.FOLDER)
    options = parser.parse_args()
    soc = socs.load(options.soc)
    predictors = load(soc, DEFAULT, options.predictors)
    for processor in PROCESSORS:
        rates = rates_of(processor, predictors, soc)
        assert rates is not None, f"no probe of the {processor} was measured"
        print(processor, rates)
        for name, table in Dataset.of(soc.name, options.dataset).tables().items():
            if table.row_type is not OpRow or is_mulayer(name) or f"_{processor}_" not in name:
                continue
            rows = [row for row in table.read() if row.status == "ok" and row.share == 1]
            off = [rates.latency_ms(parse(row.part)) / row.latency_ms for row in rows]
            if off:
                known = "measured" if name in predictors.targets else ""
                low, middle, high = np.quantile(off, (0.1, 0.5, 0.9))
                print(f"  {name:32s} {len(off):4d}  {low:5.2f} {middle:5.2f} {high:5.2f}  {known}")


if __name__ == "__main__":
    main()
