"""Published training runs, which the planner is held against."""
