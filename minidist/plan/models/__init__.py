"""Published models as numbers: their shapes, how many parameters they have, and the FLOPs of a token."""
