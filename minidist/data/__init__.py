"""Documents: from files to packed samples, in an order that is a pure function of the seed."""
