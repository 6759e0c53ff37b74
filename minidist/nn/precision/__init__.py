"""Mixed precision: formats, the policy that operations obey, master weights and loss scaling."""
