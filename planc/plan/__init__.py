"""`PlanFile` to `Plan`: names, types, units, defaults and origins; `bind.py` expands `auto`."""
