"""Processes of one machine: how they start and fork, end with their parent, and what killed ones leave behind."""
