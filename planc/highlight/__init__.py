"""How editors, review pages and documentation color plans."""
