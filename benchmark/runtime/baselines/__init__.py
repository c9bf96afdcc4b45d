"""What steps of the runtime are compared with."""
