"""Records: what files of results, SoCs and limits hold, as typed data."""
