"""Other people's measurements: tables that become datasets, and datasets that are replayed."""

from codl.registry import COMMANDS, LATENCIES, TRANSPORTS

COMMANDS.add_lazy("dataset import", "codl_published.command:dataset_import")
LATENCIES.add_lazy("replayed", "codl_published.variants:replayed_variants")
TRANSPORTS.add_lazy("replay:DIR", "codl_published.transport:TRANSPORT")
