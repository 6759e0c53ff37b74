"""Carries messages from one rank to another: one engine, and what moves the bytes below it."""
