"""Evaluation of plans: how fast they run, where the time goes, how they compare."""
