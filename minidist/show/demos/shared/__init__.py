"""What several demonstrations use: warm ranks and training runs, sizes, and pictures of time and of memory."""
