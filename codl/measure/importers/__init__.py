"""Other people's measurements: from their tables to datasets of replayed latencies."""
