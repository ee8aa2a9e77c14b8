"""Text to `PlanFile`. The only place that knows Lark."""
