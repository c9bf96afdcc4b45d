"""From the programs of a plan to what runs on devices."""
