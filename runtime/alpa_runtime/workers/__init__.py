"""Workers of a plan, and the driver that they serve."""
