"""Pictures, tables and exports, made from logs and results alone."""
