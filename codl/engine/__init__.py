"""The engine: a network and a plan in, an inference that both processors share out."""
