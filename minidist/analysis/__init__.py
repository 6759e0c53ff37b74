"""What is computed from the logs of real runs. Draws nothing."""
