from .budgets import export_budget as export_budget
from .costs import efficiency as efficiency
from .llama_cpp import export_model as export_model
