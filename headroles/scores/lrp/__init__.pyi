from .conservation_report import conservation as conservation
from .conservation_report import totals as totals
from .context import RULES as RULES
from .context import Rules as Rules
from .context import lrp_rules as lrp_rules
