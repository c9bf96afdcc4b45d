"""The package's version, the same as pyproject.toml's; workers must have the driver's."""

VERSION = "0.1.0"
