"""Results computed from the logs of real runs. Draws nothing."""
