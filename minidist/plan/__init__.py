"""What a run would cost, from arithmetic alone. Trains nothing."""
