"""A mixture of experts: many MLPs in place of one, of which each token uses a few."""
