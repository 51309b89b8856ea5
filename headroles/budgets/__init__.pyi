from . import calibration as calibration
from .cache import BudgetedCache as BudgetedCache
from .selection import cache_budget as cache_budget
