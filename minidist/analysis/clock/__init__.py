"""A cluster's clock: how long a real run would take on other hardware, and where its messages would be at any time."""
