"""Clusters: their descriptions, and measuring the machines at hand."""
