"""Other people's measurements: tables that become datasets, and datasets that are replayed."""

from codl.registry import COMMANDS, LATENCIES, TRANSPORTS

#: Prefix of a replay's serial, and what its refusals say.
SCHEME = "replay:"
INSTEAD = (
    "a replay answers with the rows of a dataset and runs nothing. Name a device by --serial, such "
    "as `local`."
)

COMMANDS.add_lazy("dataset import", "codl_published.command:dataset_import")
LATENCIES.add_lazy("replayed", "codl_published.variants:replayed_variants")
TRANSPORTS.add_lazy("replay:DIR", "codl_published.transport:TRANSPORT")
