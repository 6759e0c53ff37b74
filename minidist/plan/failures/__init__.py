"""How often machines fail, what that costs, and what spares and copies in memory help: arithmetic alone."""
