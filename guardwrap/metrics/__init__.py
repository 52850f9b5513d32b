"""Figures about draws, each with its interval and the source of its estimator."""

from guardwrap.metrics.rates import acceptance_rate

__all__ = ["acceptance_rate"]
