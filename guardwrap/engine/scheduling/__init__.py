"""Scheduling of requests and their attempts: launch order, budgets, fair shares. Independent of backends and torch."""
