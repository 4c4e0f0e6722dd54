"""Validation of plans against their models: op by op and as a whole; fallbacks if they differ."""
