"""How layouts, flags and tables are written as text."""
