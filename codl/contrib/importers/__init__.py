"""Importers of other people's tables and SoC files, as datasets of replayed latencies."""

from codl.plugins import COMMANDS

COMMANDS.add_lazy("dataset import", "codl.contrib.importers.command:dataset_import")
COMMANDS.add_lazy("soc import", "codl.contrib.importers.command:soc_import")
