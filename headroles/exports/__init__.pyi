from .alignment import AlignmentHeads as AlignmentHeads
from .alignment import alignment_heads as alignment_heads
from .budgets import export_budget as export_budget
from .costs import efficiency as efficiency
from .heads import export_heads as export_heads
from .llama_cpp import export_model as export_model
