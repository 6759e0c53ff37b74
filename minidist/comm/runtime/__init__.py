"""Starts ranks, gives them functions to run, watches them and ends them."""
