from .budgets import export_budget as export_budget
