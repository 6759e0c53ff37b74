"""Figures of chapter 2: ranks and queues."""
