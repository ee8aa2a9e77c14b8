"""Views of a plan, its graph and its layout: functions from values to text or to plain data."""
