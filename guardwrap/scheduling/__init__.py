"""Requests and their attempts: launch order, budgets, fair shares. No torch: any backend can draw for it."""
