"""What a larger batch buys: arithmetic, and a small experiment that was measured."""
