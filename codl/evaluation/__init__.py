"""What people ask of a plan: how fast it runs, where the time goes, how it compares."""
