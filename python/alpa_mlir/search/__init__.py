"""Finds the plan: micro-batches, schedules, measured candidates, and what would make a step fit."""
