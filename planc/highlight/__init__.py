"""How editors, review pages and documentation colour plans."""
