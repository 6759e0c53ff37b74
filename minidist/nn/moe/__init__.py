"""Mixtures of experts: many MLPs in place of one; each token uses a few of them."""
