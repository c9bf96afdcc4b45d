"""From a user's training step to StableHLO text and a signature."""
