"""Scripts of appendix 2: a door to PyTorch."""
