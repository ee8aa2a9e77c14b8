"""The colors of plans in editors, review pages and documentation."""
