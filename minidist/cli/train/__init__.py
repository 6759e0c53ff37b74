"""``minidist train``: trains once, in one layout, and shows the results."""
