"""The version, in one place that needs no imports."""

VERSION = "0.2.0"
