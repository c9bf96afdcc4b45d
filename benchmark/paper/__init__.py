"""What Alpa's paper evaluates: its models as shapes, its figures, and what it published."""
