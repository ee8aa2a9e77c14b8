"""`PlanFile` to `Plan`: names, types, units, defaults and where each value came from."""
