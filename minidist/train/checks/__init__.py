"""What is asked of a layout before any rank starts, beside its own fields."""
