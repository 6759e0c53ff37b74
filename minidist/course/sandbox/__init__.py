"""Running an answer inside a rank so that nothing it does reaches the next one."""
