from . import calibration as calibration
from .cache import BudgetedCache as BudgetedCache
from .exports import export_budget as export_budget
from .selection import cache_budget as cache_budget
