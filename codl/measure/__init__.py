"""Measuring: what to measure, timing, drift, the collector.

This file has what is usual: the command line tells it, and imports nothing of measuring for that.
"""

from codl.files import HOME

#: Where datasets are, a folder for each SoC.
FOLDER = HOME / "lat_datasets"
#: A processor is hot from here on, in degrees Celsius, and is waited for at most so many seconds.
HOT_C, LONGEST_S = 80.0, 120.0
#: What random inputs are drawn from.
SEED = 7
