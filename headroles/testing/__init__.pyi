from .runner import CHECKS as CHECKS
from .runner import check_model as check_model
from .tiny_models import tiny_model as tiny_model
