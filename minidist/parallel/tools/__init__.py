"""What the axes are made of. No tool imports an axis."""
