"""The plan: its format on disk, its parts as values, and its text for people."""

from alpa_runtime.plan.plan import Plan, PlanDiff

__all__ = ["Plan", "PlanDiff"]
