"""Two sets of results against each other, and one over time: what changed, and whether that is more than noise."""
