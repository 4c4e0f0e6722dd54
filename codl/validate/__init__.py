"""Whether a plan computes what its model says: op by op and as a whole, and what is done if not."""
